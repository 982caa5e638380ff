"""Draw where GSP looks from what a run of the study kept, which may have had no matplotlib.

python -m gspool.experiments.collage.attention
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gspool.experiments.collage.picture import draw, read


def main(arguments: Sequence[str] | None = None) -> None:
    """Read what was kept, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", type=Path, default=Path("runs/reproduce/collage/attention.safetensors"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/collage.png"))
    chosen = parser.parse_args(arguments)
    draw(read(chosen.maps)[0], chosen.picture)
    print(f"written: {chosen.picture}")


if __name__ == "__main__":
    main()
