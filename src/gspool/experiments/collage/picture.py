"""Where GSP looks on collages, of training and of test classes (Figure 3, b.2)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from gspool.experiments.collage.maps import stitched
from gspool.experiments.collage.recipe import ZSR, Training
from gspool.experiments.collage.training import Ground, run_course, splits_of
from gspool.experiments.experiment import RunOptions
from gspool.provenance import device_name

if TYPE_CHECKING:
    from jaxtyping import Float, Int64, UInt8
    from torch import Tensor

EACH = 4
SHOWN = ("train", "test")
# What `seen` and `draw` do, in words for the caption.
PICKED = f"Nobody chose the collages: of {EACH} classes, evenly over their list, the first one each."
SCALED = "Every map has a scale of its own, black for 0 and brightest for its largest weight."


class Seen(NamedTuple):
    """Collages, the weights over them, and which quarter shows the object."""

    pictures: UInt8[Tensor, "K 3 64 64"]
    weights: Float[Tensor, "K h w"]
    objects: Int64[Tensor, " K"]


def show_attention(
    usual: Mapping[str, Any], ground: Callable[[], Ground], options: RunOptions, maps: Path
) -> dict[str, Any]:
    """Draw the weights of GSP+ZSR with PNCA over a few collages, and say how it was trained.

    What is drawn is kept in a file, ``maps``; it is trained where that is not there yet, and drawn where matplotlib is
    installed; `python -m gspool.experiments.collage.pictures` draws it elsewhere.
    """
    if not maps.is_file():
        training = Training("gsp", "pnca", **{**usual, "zsr": ZSR})
        trained_on = ground()
        model, result = run_course(training, trained_on, options.device)
        known = {
            "collages": len(splits_of(training, trained_on).train),
            "steps": result.best_step,
            "device": device_name(torch.device(options.device)),
        }
        keep([seen(model, trained_on, split) for split in SHOWN], known, maps)
    groups, known = read(maps)
    if find_spec("matplotlib") is None:
        later = f"python -m gspool.experiments.collage.pictures --maps {maps}"
        print(f"matplotlib is not installed here; where it is: {later}", flush=True)
    else:
        draw(groups, options.images / "collage.png")
    return known


def keep(groups: Sequence[Seen], known: Mapping[str, Any], path: Path) -> None:
    """Write what is to be drawn, aside first and then renamed."""
    tensors = {
        f"{split}.{name}": value.contiguous()
        for split, group in zip(SHOWN, groups, strict=True)
        for name, value in group._asdict().items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(tensors, aside, metadata={"known": json.dumps(dict(known))})
    aside.replace(path)


def read(path: Path) -> tuple[list[Seen], dict[str, Any]]:
    """Read what is to be drawn, and how it was trained.

    Raises:
        ValueError: if there is no such file.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path.name} of weights to draw; run gspool reproduce collage first")
    with safe_open(path, "pt") as file:
        groups = [Seen(**{name: file.get_tensor(f"{split}.{name}") for name in Seen._fields}) for split in SHOWN]
        known: dict[str, Any] = json.loads(file.metadata()["known"])
    return groups, known


@torch.no_grad()
def seen(model: Any, ground: Ground, split: str) -> Seen:
    """Take collages of different classes and the weights that a head gives them."""
    maps = getattr(ground.maps["collage", "postactivation"], split)
    parts = getattr(ground.collages.parts, split)
    firsts = [int((maps.labels == label).nonzero()[0]) for label in maps.labels.unique().tolist()]
    # Evenly over the classes, the first of each.
    rows = torch.tensor(firsts[:: max(len(firsts) // EACH, 1)][:EACH], device=maps.labels.device)
    model.eval()
    embedded = model.embed(maps.pixels[rows])
    if embedded.weights is None or embedded.grid is None:
        raise ValueError("this layer has no weights over the map that could be drawn; use gsp")
    pictures = stitched(ground.collages.tiles, parts.pixels[rows].flatten(1)[:, :4])
    return Seen(
        pictures.cpu(),
        embedded.weights.view(-1, *embedded.grid).cpu(),
        ground.collages.objects[split][rows.cpu()],
    )


def draw(groups: Sequence[Seen], path: Path) -> None:
    """Save two rows of pictures: collages with the object framed, and their weights."""
    import matplotlib

    # Before pyplot, which would look for a screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    columns = sum(len(group.pictures) for group in groups)
    figure, grid = pyplot.subplots(2, columns, figsize=(1.3 * columns, 2.7), layout="constrained", squeeze=False)
    place = 0
    for name, group in zip(("training classes", "test classes"), groups, strict=True):
        for number in range(len(group.pictures)):
            above, below = grid[0][place], grid[1][place]
            above.imshow(group.pictures[number].permute(1, 2, 0).numpy())
            down, across = divmod(int(group.objects[number]), 2)
            above.add_patch(
                Rectangle((32 * across - 0.5, 32 * down - 0.5), 32, 32, fill=False, edgecolor="yellow", linewidth=2)
            )
            below.imshow(group.weights[number].numpy(), cmap="magma", vmin=0)
            if number == 0:
                above.set_title(name, fontsize=9, loc="left")
            place += 1
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and no version of the library inside, so that the same figure is the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
