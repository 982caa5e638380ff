"""Before any training: what does GSP select on CUB, for either start of the prototypes and several epsilon?

    python -m gspool.experiments.benchmark.selection --root DATA --weights resnet50.safetensors     # CPU, two minutes

Promises results/cub_selection.json: the entropy of the weights, and how they go with the length of the backbone's
features, which is itself largest towards the middle of the picture, where the birds are. Prototypes are chosen on some
training images and looked at on others. At the paper's epsilon the weights are flat. K-center on *pooled* vectors, the
authors' start, prefers long features; on local features it picks the odd ones out, wherever they lie.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from gspool import data as data_sets
from gspool.experiments.benchmark.arms import Arm, settings_of
from gspool.experiments.benchmark.looks import draw_looks
from gspool.experiments.benchmark.selection_table import FILE, IMAGES, rendered
from gspool.experiments.resident import ResidentSet, load_resident
from gspool.experiments.resident.evaluation import relative_weights
from gspool.experiments.resident.views import evaluation_view
from gspool.functional import clip_norm, greedy_centers, gsp_pool
from gspool.provenance import write_result
from gspool.training.build import build_model
from gspool.training.embed import relative_entropy

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.pooling.embedding import EmbedThenPool

SEED, MU, PROTOTYPES = 0, 0.3, 64
EPSILONS = (0.5, 5.0, 20.0, 50.0)


def correlation(first: Float[Tensor, "B N"], second: Float[Tensor, "B N"]) -> float:
    """Correlate two maps within every image, and average over images.

    Example:
        >>> correlation(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2.0, 4.0, 6.0]]))
        1.0
    """
    deviations = [each - each.mean(1, keepdim=True) for each in (first, second)]
    lengths = deviations[0].norm(dim=1) * deviations[1].norm(dim=1)
    return round(float(((deviations[0] * deviations[1]).sum(1) / lengths.clamp(min=1e-12)).mean()), 6)


@torch.no_grad()
def selection_rows(
    features: Float[Tensor, "B C H W"], tokens: Float[Tensor, "B N D"], prototypes: int = PROTOTYPES
) -> list[dict[str, Any]]:
    """Choose prototypes on the first two thirds of the images, both ways, and look at the weights on the last third."""
    seen = 2 * len(tokens) // 3
    lengths = features[seen:].flatten(2).norm(dim=1)
    starts = {
        "pooled vectors": clip_norm(tokens[:seen].mean(1)),
        "local features": clip_norm(tokens[:seen].flatten(0, 1)),
    }
    rows = []
    for name, vectors in starts.items():
        centres = vectors[greedy_centers(vectors, prototypes)]
        for epsilon in EPSILONS:
            weights = cast("Tensor", gsp_pool(tokens[seen:], centres, MU, epsilon).weights)
            rows.append(
                {
                    "start": name,
                    "epsilon": epsilon,
                    "entropy": float(relative_entropy(weights).mean()),
                    "correlation_with_length": correlation(weights, lengths),
                    "length_of_what_is_pooled": float(((weights * lengths).sum(1) / lengths.mean(1)).mean()),
                    "mean_weights": relative_weights(weights),
                }
            )
    return rows


def length_with_nearness(features: Float[Tensor, "B C H W"]) -> float:
    """Correlate the length of features with how near they are to the middle of the picture.

    Example:
        >>> near = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        >>> length_with_nearness(near[None, None]) > 0.5
        True
    """
    height, width = features.shape[2:]
    down, across = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    away = torch.stack([down - (height - 1) / 2, across - (width - 1) / 2]).norm(dim=0).flatten()
    return correlation(features.flatten(2).norm(dim=1), -away.expand(len(features), -1))


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="the folder of CUB-200-2011")
    parser.add_argument("--weights", type=str, default=None, help="ImageNet weights of the ResNet50 of Keras")
    parser.add_argument("--images", type=int, default=IMAGES, help="how many training images to look at")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--pictures", type=Path, default=Path("docs/images"))
    options = parser.parse_args(arguments)
    images = data_sets.create("cub", options.root, "train")
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))[: options.images]
    resident = load_resident(images.subset(chosen))
    settings = settings_of(Arm("c2", "gsp"), "cub", "fair", "keras/resnet50", options.weights, SEED, "32-true")
    model = build_model(settings).eval()
    features = torch.cat(
        [_features(model, resident, rows, settings.data) for rows in torch.arange(len(chosen)).split(16)]
    )
    with torch.no_grad():
        tokens = cast("EmbedThenPool", model.head).embed(features).flatten(2).transpose(1, 2)
    rows = selection_rows(features, tokens)
    value = {"rows": rows, "length_with_nearness": length_with_nearness(features)}
    command = "python -m gspool.experiments.benchmark.selection --root DATA --weights WEIGHTS"
    write_result(options.results / f"{FILE}.json", value, command=command, seeds=[SEED])
    maps = {f"{row['start']}, epsilon {row['epsilon']:g}": row["mean_weights"] for row in rows}
    draw_looks(maps, options.pictures / f"{FILE}.png")
    print(rendered(value))


@torch.no_grad()
def _features(model: Any, images: ResidentSet, places: Tensor, data: Any) -> Tensor:
    return model.feature_map(evaluation_view(images, places, data, model.pixels.crop[0]))


if __name__ == "__main__":
    main()
