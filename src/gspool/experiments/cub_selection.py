"""What GSP selects on CUB before any training, for two starts of the prototypes and several epsilon.

    python -m gspool.experiments.cub_selection --root DATA --weights resnet50.safetensors     # CPU, two minutes

Writes results/cub_selection.json: the entropy of the weights, and their correlation with the length of the backbone's
features, which is largest towards the centre of the image, where the birds are. Prototypes are chosen on some training
images and looked at on others. At the paper's epsilon the weights are flat. K-center on *pooled* vectors, the authors'
start, prefers long features; on local features it picks outliers, wherever they are.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from gspool import data as data_sets
from gspool.evaluation.entropy import relative_entropy
from gspool.experiments.experiment import Record
from gspool.experiments.plots import draw_maps
from gspool.experiments.retrieval_figures import table
from gspool.experiments.retrieval_training import Variant, train_config
from gspool.functional import clip_norm, greedy_centers, gsp_pool
from gspool.provenance import write_result
from gspool.training.metric_learning import build_model
from gspool.training.sets import on_device

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.pooling.embedding import EmbedThenPool

FILE = "cub_selection"
SEED, IMAGES, MU, PROTOTYPES = 0, 192, 0.3, 64
EPSILONS = (0.5, 5.0, 20.0, 50.0)


def correlation(first: Float[Tensor, "B N"], second: Float[Tensor, "B N"]) -> float:
    """Correlate two maps within every image, and average over images."""
    deviations = [each - each.mean(1, keepdim=True) for each in (first, second)]
    lengths = deviations[0].norm(dim=1) * deviations[1].norm(dim=1)
    return round(float(((deviations[0] * deviations[1]).sum(1) / lengths.clamp(min=1e-12)).mean()), 6)


@torch.no_grad()
def selection_rows(
    features: Float[Tensor, "B C H W"], tokens: Float[Tensor, "B N D"], prototypes: int = PROTOTYPES
) -> list[dict[str, Any]]:
    """Choose prototypes on the first two thirds of the images, both ways, and measure the weights on the last third."""
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
            relative = weights.shape[1] * weights.mean(0)
            rows.append(
                {
                    "start": name,
                    "epsilon": epsilon,
                    "entropy": float(relative_entropy(weights).mean()),
                    "correlation_with_length": correlation(weights, lengths),
                    "length_of_what_is_pooled": float(((weights * lengths).sum(1) / lengths.mean(1)).mean()),
                    "mean_weights": [round(each, 4) for each in relative.tolist()],
                }
            )
    return rows


def length_with_nearness(features: Float[Tensor, "B C H W"]) -> float:
    """Correlate the length of features with how near they are to the centre of the image."""
    height, width = features.shape[2:]
    down, across = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    away = torch.stack([down - (height - 1) / 2, across - (width - 1) / 2]).norm(dim=0).flatten()
    return correlation(features.flatten(2).norm(dim=1), -away.expand(len(features), -1))


def selection(record: Record) -> str:
    """Write the flatness of the weights and what they prefer, for both starts."""
    return table(
        [
            {
                "prototypes from": row["start"],
                "ε": f"{row['epsilon']:g}",
                "entropy": f"{row['entropy']:.4f}",
                "correlation with feature length": f"{row['correlation_with_length']:+.2f}",
                "mean length of what is pooled": f"{row['length_of_what_is_pooled']:.2f}",
            }
            for row in record["value"]["rows"]
        ]
    )


def nearness(record: Record) -> str:
    """Write the correlation of feature length with nearness to the centre, as one number."""
    return f"{record['value']['length_with_nearness']:+.2f}"


def draw(record: Record, path: Path) -> None:
    """Draw the mean weight of every place, a row of maps for each start."""
    rows = record["value"]["rows"]
    draw_maps({f"{row['start']}, $\\varepsilon$ = {row['epsilon']:g}": row["mean_weights"] for row in rows}, path)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="folder of CUB-200-2011")
    parser.add_argument("--weights", type=str, default=None, help="ImageNet weights of the Keras ResNet50")
    options = parser.parse_args()
    images = data_sets.create("cub", options.root, "train")
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))[:IMAGES]
    config = train_config(Variant("c2", "gsp"), "cub", "fair", "keras/resnet50", options.weights, SEED, "32-true")
    model = build_model(config).eval()
    held = on_device(images.subset(chosen), config.data, model.pixels, "cpu", training=True)
    with torch.no_grad():
        places = torch.arange(len(chosen)).split(16)
        features = torch.cat([model.feature_map(held.evaluation_images(each)) for each in places])
        tokens = cast("EmbedThenPool", model.head).embed(features).flatten(2).transpose(1, 2)
    value = {"rows": selection_rows(features, tokens), "length_with_nearness": length_with_nearness(features)}
    command = "python -m gspool.experiments.cub_selection --root DATA --weights WEIGHTS"
    record = write_result(Path(f"results/{FILE}.json"), value, command=command, seeds=[SEED])
    draw(record, Path(f"docs/images/{FILE}.png"))
    print(selection(record))


if __name__ == "__main__":
    main()
