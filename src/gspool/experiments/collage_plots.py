"""Figures of the collage study: the pooling table as bars, and the weights of GSP over collages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gspool.experiments.collage_grid import LOSSES, ROWS
from gspool.experiments.collage_tables import cells_of, paper_of
from gspool.experiments.collage_training import Collages, Sets, stitched
from gspool.experiments.experiment import Record
from gspool.experiments.plots import bars, legend_below, save, subplots
from gspool.files import write_atomic

# Collages of each split in the picture of weights.
SHOWN = 4
TITLES = {"train": "training classes", "test": "test classes"}


@torch.no_grad()
def write_shown_weights(model: Any, maps: Sets, collages: Collages, path: Path) -> None:
    """Keep what the picture of weights shows: the first collage of some classes, its object, and the weights."""
    from safetensors.torch import save as safetensors_bytes

    content = {}
    for split in TITLES:
        images, stored = maps[split], collages.sets[split]  # type: ignore[index]
        firsts = [int((images.labels == label).nonzero()[0]) for label in images.labels.unique().tolist()]
        places = torch.tensor(firsts[:: max(len(firsts) // SHOWN, 1)][:SHOWN])
        embedded = model.eval().embed(images.evaluation_images(places))
        tiles, objects = stored.evaluation_images(places).split([4, 1], dim=1)
        content[f"{split}.pictures"] = stitched(collages.tiles, tiles).cpu().contiguous()
        content[f"{split}.weights"] = embedded.weights.view(-1, *embedded.grid).cpu().contiguous()
        content[f"{split}.objects"] = objects.flatten().cpu().contiguous()
    write_atomic(path, safetensors_bytes(content))


def draw_weights(kept: Path, path: Path) -> None:
    """Draw collages with the object framed, and the weights below, each map from 0 to its largest weight."""
    from matplotlib.patches import Rectangle
    from safetensors.torch import load_file

    content = load_file(kept)
    columns = [(split, number) for split in TITLES for number in range(len(content[f"{split}.objects"]))]
    figure, grid = subplots(2, len(columns), 1.3 * len(columns), 2.7)
    for (above, below), (split, number) in zip(grid.T, columns, strict=True):
        pictures, weights, objects = (content[f"{split}.{name}"] for name in ("pictures", "weights", "objects"))
        above.imshow(pictures[number].permute(1, 2, 0).numpy())
        down, across = divmod(int(objects[number]), 2)
        frame = Rectangle((32 * across - 0.5, 32 * down - 0.5), 32, 32, fill=False, edgecolor="yellow", linewidth=2)
        above.add_patch(frame)
        below.imshow(weights[number].numpy(), cmap="magma", vmin=0)
        if number == 0:
            above.set_title(TITLES[split], fontsize=9, loc="left")
        for axes in (above, below):
            axes.set(xticks=[], yticks=[])
    save(figure, path)


def draw_bars(record: Record, path: Path) -> None:
    """Draw the pooling table: a bar a layer, the best on top, layers with GSP in orange, diamonds for the paper."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    cells = cells_of(record, "frozen")
    figure, grid = subplots(1, len(LOSSES), 10, 5.4, sharex=True)
    for axes, (loss, shown) in zip(grid[0], LOSSES.items(), strict=True):
        names = sorted((name for name in ROWS if (name, loss) in cells), key=lambda name: -cells[name, loss]["map@r"])
        means, stds = ([cells[name, loss][part] for name in names] for part in ("map@r", "std"))
        colors = ["C1" if "GSP" in name else "C0" for name in names]
        bars(axes, names, means, stds, colors, [paper_of(name, loss) for name in names])
        axes.set(title=f"{shown}, frozen backbone", xlabel="MAP@R, %")
    seeds = f"mean ± std, {len(record['seeds'])} seeds"
    legend_below(
        figure,
        [
            Patch(color="C1", label=f"with GSP; {seeds}"),
            Patch(color="C0", label=f"other layers; {seeds}"),
            Line2D([], [], marker="D", markersize=4, color="black", linestyle="", label="paper"),
        ],
    )
    save(figure, path)
