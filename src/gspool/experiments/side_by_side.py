"""Every pooling layer on one photograph: where each looks before it has learned anything.

    python -m gspool.experiments.side_by_side --weights resnet50_keras_imagenet.safetensors      # one minute

Not a figure of the paper. Writes docs/images/pooling_layers.png and results/side_by_side.json. The photograph is the
portrait of Grace Hopper that comes with matplotlib; the features are those of an ImageNet ResNet50. For a layer with
weights the figure shows them, for the others how strongly each position moves the pooled vector (the gradient of its
squared length). Layers are untrained, so those that learn where to look are near uniform; GSP starts from k-center.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gspool import pooling
from gspool.evaluation.entropy import relative_entropy
from gspool.experiments.plots import overlay, save, subplots
from gspool.models import Embedder
from gspool.pooling import GSP, PoolingLayer
from gspool.provenance import write_result

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

COLUMNS, SIDE = 8, 448
PROTOTYPES = 8


def photograph(side: int) -> Float[Tensor, "1 3 H W"]:
    """Load the portrait, cropped to a square around the face, as floats in 0 .. 1."""
    import matplotlib.cbook
    from PIL import Image
    from torchvision.transforms.v2.functional import pil_to_tensor

    path = matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
    with Image.open(path) as picture:
        width = picture.width
        square = picture.convert("RGB").crop((0, 0, width, width)).resize((side, side), Image.Resampling.BICUBIC)
    return pil_to_tensor(square)[None] / 255


def looked_at(layer: PoolingLayer, features: Float[Tensor, "1 C H W"]) -> Float[Tensor, "H W"]:
    """Compute how much each position counts, summing to 1."""
    leaf = features.clone().requires_grad_()
    out = layer.pool(leaf)
    if out.weights is not None:
        heat = out.weights.detach()
    else:
        out.pooled.square().sum().backward()
        assert leaf.grad is not None
        heat = leaf.grad.flatten(2).norm(dim=1)
    return (heat / heat.sum()).unflatten(1, features.shape[2:])[0]


def made(name: str, features: Float[Tensor, "1 C H W"]) -> PoolingLayer:
    """Make an untrained layer; the prototypes of GSP come from the features."""
    layer = pooling.create(name, features.shape[1])
    if name == "gsp":
        layer = GSP(features.shape[1], prototypes=PROTOTYPES, mu=0.3, epsilon=20.0)
        layer.init_prototypes(features)
    return layer.eval()


def draw(heats: dict[str, Tensor], image: Float[Tensor, "1 3 H W"], path: Path) -> None:
    """Lay each map over the photograph, brighter where the layer looks."""
    picture = image[0].permute(1, 2, 0).numpy()
    rows = math.ceil((len(heats) + 1) / COLUMNS)
    figure, grid = subplots(rows, COLUMNS, 1.5 * COLUMNS, 1.85 * rows)
    panels: list[tuple[str, Any]] = [("photograph", None), *heats.items()]
    for axes, (name, heat) in zip(grid.flat, panels, strict=False):
        overlay(axes, picture, heat, name)
    for axes in grid.flat:
        axes.axis("off")
    save(figure, path)


def main() -> None:
    """Draw the figure and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="safetensors of the Keras ResNet50")
    weights = parser.parse_args().weights
    torch.manual_seed(0)
    model = Embedder("keras/resnet50", "gap", backbone_options={"weights": str(weights)}).eval()
    image = photograph(SIDE)
    with torch.no_grad():
        features = model.feature_map(image)
    heats = {name: looked_at(made(name, features), features) for name in pooling.list()}
    draw(heats, image, Path("docs/images/pooling_layers.png"))
    rows = [
        {"layer": name, "entropy of the map, 1 is uniform": float(relative_entropy(heat.flatten()[None]))}
        for name, heat in heats.items()
    ]
    command = "python -m gspool.experiments.side_by_side --weights WEIGHTS"
    write_result(Path("results/side_by_side.json"), rows, command=command, seeds=[0], libraries=["timm", "matplotlib"])


if __name__ == "__main__":
    main()
