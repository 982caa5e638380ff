"""Figures of the collage study: the pooling table as bars, and the weights of GSP over collages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.experiments.collage_data import Collages, Sets, stitched
from gspool.experiments.collage_grid import LOSSES, ROWS
from gspool.experiments.collage_tables import cells_of, paper_of
from gspool.experiments.plots import bars, legend_below, save, subplots
from gspool.files import write_atomic

if TYPE_CHECKING:
    from jaxtyping import Float, Int64, UInt8
    from torch import Tensor

    from gspool.data.image_set import Split
    from gspool.experiments.experiment import Record

# Collages of each split in the picture of weights.
SHOWN = 4


class ShownWeights(NamedTuple):
    """Collages of one split, the weights over them, and the quarters of their objects."""

    pictures: UInt8[Tensor, "K 3 64 64"]
    weights: Float[Tensor, "K h w"]
    objects: Int64[Tensor, " K"]


@torch.no_grad()
def shown_weights(model: Any, maps: Sets, collages: Collages, split: Split) -> ShownWeights:
    """Return collages of classes spread evenly over their list, the first of each, and the weights over them."""
    images = maps[split]
    firsts = [int((images.labels == label).nonzero()[0]) for label in images.labels.unique().tolist()]
    places = torch.tensor(firsts[:: max(len(firsts) // SHOWN, 1)][:SHOWN])
    embedded = model.eval().embed(images.evaluation_images(places))
    parts = collages.sets[split].evaluation_images(places)
    weights = embedded.weights.view(-1, *embedded.grid)
    return ShownWeights(stitched(collages.tiles, parts[:, :4]).cpu(), weights.cpu(), parts[:, 4].cpu())


def write_shown_weights(model: Any, maps: Sets, collages: Collages, path: Path) -> None:
    """Keep what the picture of weights shows of a model."""
    from safetensors.torch import save as safetensors_bytes

    content = {
        f"{split}.{name}": value.contiguous()
        for split in ("train", "test")
        for name, value in shown_weights(model, maps, collages, split)._asdict().items()
    }
    write_atomic(path, safetensors_bytes(content))


def read_shown_weights(path: Path) -> dict[str, ShownWeights]:
    """Read what `write_shown_weights` kept, by split."""
    from safetensors.torch import load_file

    content = load_file(path)
    return {
        split: ShownWeights(*(content[f"{split}.{name}"] for name in ShownWeights._fields))
        for split in ("train", "test")
    }


def draw_weights(groups: Mapping[str, ShownWeights], path: Path) -> None:
    """Draw collages with the object framed, and the weights below, each map from 0 to its largest weight."""
    from matplotlib.patches import Rectangle

    columns = [(split, shown, number) for split, shown in groups.items() for number in range(len(shown.pictures))]
    figure, grid = subplots(2, len(columns), 1.3 * len(columns), 2.7)
    for place, (split, shown, number) in enumerate(columns):
        above, below = grid[0][place], grid[1][place]
        above.imshow(shown.pictures[number].permute(1, 2, 0).numpy())
        down, across = divmod(int(shown.objects[number]), 2)
        frame = Rectangle((32 * across - 0.5, 32 * down - 0.5), 32, 32, fill=False, edgecolor="yellow", linewidth=2)
        above.add_patch(frame)
        below.imshow(shown.weights[number].numpy(), cmap="magma", vmin=0)
        if number == 0:
            above.set_title({"train": "training classes", "test": "test classes"}[split], fontsize=9, loc="left")
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
        own = [cells[name, loss] for name in names]
        bars(
            axes,
            names,
            [cell["map@r"] for cell in own],
            [cell["std"] for cell in own],
            ["C1" if "GSP" in name else "C0" for name in names],
            [paper_of(name, loss) for name in names],
        )
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
