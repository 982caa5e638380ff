"""What GSP selects on CUB: before any training for two starts of the prototypes, and after training a head.

    python -m gspool.experiments.cub_selection --root DATA --weights resnet50.safetensors     # CPU, two minutes
    python -m gspool.experiments.cub_selection --root DATA --weights resnet50.safetensors --part prototypes

The first writes results/cub_selection.json: the entropy of the weights, and their correlation with the length of the
backbone's features, which is largest towards the centre of the image, where the birds are. Prototypes are chosen on
some training images and looked at on others. At the paper's epsilon the weights are flat. K-center on *pooled* vectors,
the authors' start, prefers long features; on local features it picks outliers, wherever they are.

The second is Figure 5 of the paper, its pictures, on test classes of CUB: a GSP head with 32 prototypes is trained
on the tokens of a frozen ResNet50, of 200 training images, and pooling weights are coloured by the prototype that
dominates their place. It writes results/cub_prototypes.json, and --pictures FILE the maps over the photographs, which
are for research only and no part of this project. CPU, five minutes.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch

from gspool import data as data_sets
from gspool.evaluation.entropy import relative_entropy
from gspool.experiments.experiment import Record
from gspool.experiments.plots import draw_maps, save, subplots
from gspool.experiments.retrieval_figures import table
from gspool.experiments.retrieval_training import Variant, train_config
from gspool.functional import clip_norm, greedy_centers, gsp_pool
from gspool.provenance import write_result
from gspool.search.explanation import Explanation, explain, shared_prototypes
from gspool.search.explanation.overlay import Scales, owners_over
from gspool.training import TrainConfig, fit
from gspool.training.metric_learning import build_model
from gspool.training.presets import changed, preset
from gspool.training.sets import on_device

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.data import ImageSet
    from gspool.data.image_set import Split
    from gspool.pooling.embedding import EmbedThenPool

FILE, PROTOTYPES_FILE = "cub_selection", "cub_prototypes"
SEED, IMAGES, MU, PROTOTYPES = 0, 192, 0.3, 64
EPSILONS = (0.5, 5.0, 20.0, 50.0)


def correlation(first: Float[Tensor, "B N"], second: Float[Tensor, "B N"]) -> float:
    """Correlate two maps within every image, and average over images."""
    one, other = (each - each.mean(1, keepdim=True) for each in (first, second))
    return round(float(torch.cosine_similarity(one, other, dim=1).mean()), 6)


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


def head_config(root: Path, weights: str | None) -> TrainConfig:
    """Return the training of a GSP head on tokens of a frozen ResNet50; at 448 pixels it has a map of 14 x 14."""
    return changed(
        preset("folder"),
        data__name="cub",
        data__root=str(root),
        data__classes_per_batch=8,
        data__workers=0,
        model__backbone="keras/resnet50",
        model__backbone_options={"weights": weights, "pixels": {"size": 448, "resize": 448}},
        model__pooling="gsp",
        model__pooling_options={"prototypes": 32, "mu": 0.3, "epsilon": 20.0},
        model__dim=128,
        loss__zsr=0.1,
        features__views=["centre"],
        features__batch_size=8,
        trainer__max_steps=150,
        trainer__evaluate_every=150,
        trainer__patience=None,
        trainer__monitor_split="none",
        trainer__seed=SEED,
        output__report=False,
    )


def first_of(images: ImageSet, classes: Sequence[int], count: int) -> ImageSet:
    """Return the first images of some classes."""
    chosen = [(images.labels == label).nonzero().flatten()[:count] for label in classes]
    return images.subset(torch.cat(chosen)).without_empty_classes()


def explained(config: TrainConfig, sets: Mapping[Split, ImageSet], folder: Path) -> list[Explanation]:
    """Train the head, and explain every test image."""
    from torchvision.transforms.v2.functional import to_pil_image

    model = build_model(config)
    fit(config, folder, model=model, listed=sets)
    return [explain(model, to_pil_image(sets["test"][place][0])) for place in range(len(sets["test"]))]


def prototype_value(explanations: Sequence[Explanation], images: ImageSet) -> dict[str, Any]:
    """Return what the figure shows, and how far images of a class use the same prototypes as those of others do.

    Of an image: its class, the weight of every place relative to equal weights, and the prototype that dominates it.
    """
    shared: dict[bool, list[float]] = {True: [], False: []}
    for (one, first), (other, second) in itertools.combinations(enumerate(explanations), 2):
        same = bool(images.labels[one] == images.labels[other])
        shared[same].append(shared_prototypes(first, second).overlap)
    return {
        "prototypes": len(cast("Tensor", explanations[0].attributes)),
        "entropy": fmean(each.entropy for each in explanations),
        "overlap_same_class": fmean(shared[True]),
        "overlap_other_class": fmean(shared[False]),
        "images": [
            {
                "class": images.class_names[int(label)],
                "weights": " ".join(f"{each:.2f}" for each in (shown.weights * shown.weights.numel()).flatten()),
                "owners": " ".join(str(int(each)) for each in cast("Tensor", shown.owners).flatten()),
            }
            for label, shown in zip(images.labels, explanations, strict=True)
        ],
    }


def without_photograph(row: Mapping[str, Any], prototypes: int) -> Explanation:
    """Return the explanation of an image of the result on a white picture."""
    weights = torch.tensor([float(each) for each in row["weights"].split()])
    owners = torch.tensor([int(each) for each in row["owners"].split()])
    side = round(len(owners) ** 0.5)
    plan = torch.nn.functional.one_hot(owners, prototypes).t() * weights / weights.sum()
    white = torch.full((3, 16 * side, 16 * side), 255, dtype=torch.uint8)
    maps = (weights / weights.sum()).unflatten(0, (side, side)), owners.unflatten(0, (side, side))
    return Explanation(white, torch.zeros(0), *maps, plan.sum(1), plan.unflatten(1, (side, side)))


def draw_prototypes(record: Record, path: Path) -> None:
    """Draw pooling weights coloured by the dominant prototype, without the photographs."""
    value = record["value"]
    explanations = [without_photograph(row, value["prototypes"]) for row in value["images"]]
    draw_owners(explanations, [row["class"] for row in value["images"]], path)


def draw_owners(explanations: Sequence[Explanation], names: Sequence[str], path: Path) -> None:
    """Draw maps of prototypes in one scale, the images of a class side by side."""
    columns, scale = 6, Scales.of(explanations).taken
    rows = -(-len(explanations) // columns)
    figure, grid = subplots(rows, columns, 1.7 * columns, 1.95 * rows)
    for axes, each, name in zip(grid.flat, explanations, names, strict=False):
        axes.imshow(owners_over(each, scale=scale))
        axes.set_title(name.partition(".")[2].replace("_", " ") or name, fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
    save(figure, path)


def overlap(record: Record) -> str:
    """Write how far images of one class, and of two, share prototypes."""
    value = record["value"]
    return f"{value['overlap_same_class']:.2f} against {value['overlap_other_class']:.2f}"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="folder of CUB-200-2011")
    parser.add_argument("--weights", type=str, default=None, help="ImageNet weights of the Keras ResNet50")
    parser.add_argument("--part", choices=("start", "prototypes"), default="start", help="before or after training")
    parser.add_argument("--work", type=Path, default=Path("runs/reproduce/cub_prototypes"), help="folder of the run")
    parser.add_argument("--pictures", type=Path, help="file for the maps of prototypes over the photographs")
    options = parser.parse_args()
    command = "python -m gspool.experiments.cub_selection --root DATA --weights WEIGHTS"
    train = data_sets.create("cub", options.root, "train")
    if options.part == "prototypes":
        test = data_sets.create("cub", options.root, "test")
        sets: dict[Split, ImageSet] = {
            "train": first_of(train, range(0, 100, 2), 4),
            "test": first_of(test, range(0, 100, 9), 2),
        }
        found = explained(head_config(options.root, options.weights), sets, options.work)
        value = prototype_value(found, sets["test"])
        command += " --part prototypes"
        record = write_result(Path(f"results/{PROTOTYPES_FILE}.json"), value, command=command, seeds=[SEED])
        draw_prototypes(record, Path(f"docs/images/{PROTOTYPES_FILE}.png"))
        if options.pictures is not None:
            draw_owners(found, [row["class"] for row in value["images"]], options.pictures)
        print(f"overlap of prototypes, images of one class against two: {overlap(record)}")
        return
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(SEED))[:IMAGES]
    config = train_config(Variant("c2", "gsp"), "cub", "fair", "keras/resnet50", options.weights, SEED)
    model = build_model(config).eval()
    held = on_device(train.subset(chosen), config.data, model.pixels, "cpu", training=True)
    with torch.no_grad():
        places = torch.arange(len(chosen)).split(16)
        features = torch.cat([model.feature_map(held.evaluation_images(each)) for each in places])
        tokens = cast("EmbedThenPool", model.head).embed(features).flatten(2).transpose(1, 2)
    value = {"rows": selection_rows(features, tokens), "length_with_nearness": length_with_nearness(features)}
    record = write_result(Path(f"results/{FILE}.json"), value, command=command, seeds=[SEED])
    draw(record, Path(f"docs/images/{FILE}.png"))
    print(selection(record))


if __name__ == "__main__":
    main()
