"""Draw where GSP looks, and the pooling table, from what a run of the study kept, which may have had no matplotlib.

python -m gspool.experiments.collage.pictures
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gspool.experiments.collage.bars import PICTURE, draw_bars
from gspool.experiments.collage.picture import draw, read
from gspool.provenance import read_result


def main(arguments: Sequence[str] | None = None) -> None:
    """Read what was kept, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", type=Path, default=Path("runs/reproduce/collage/attention.safetensors"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--images", type=Path, default=Path("docs/images"))
    chosen = parser.parse_args(arguments)
    draw(read(chosen.maps)[0], chosen.images / "collage.png")
    draw_bars(read_result(chosen.results / "collage.json")["value"]["frozen"], chosen.images / PICTURE)
    print(f"written: {chosen.images / 'collage.png'}, {chosen.images / PICTURE}")


if __name__ == "__main__":
    main()
