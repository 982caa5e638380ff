"""Embed an image set and measure retrieval on it, on one process or many: metrics, results by class, a threshold."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from gspool.data import ImageSet, Shard
from gspool.data.batches import ShieldedLoader, loading_processes, read_ahead
from gspool.data.check import some
from gspool.evaluation import (
    RetrievalMetrics,
    calibrate_threshold,
    class_bootstrap,
    class_results,
    confused_pairs,
    retrieval_metrics,
)
from gspool.evaluation.entropy import FLAT_ENTROPY, relative_entropy
from gspool.evaluation.verification import THRESHOLD
from gspool.files import write_atomic
from gspool.models.freezing import evaluating
from gspool.terminal.bar import work_bar
from gspool.training.gpu_data import READERS, TensorSet, query_rows
from gspool.training.processes import gather_blocks
from gspool.training.stream import collate

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

CLASSES = "classes.csv"
# Below so many classes, one class more or less moves the figures.
FEW_CLASSES = 20
MAIN, SHOWN, PAIRS = ("p@1", "map@r"), 5, 3
# The classes of its logits are in the other file, a list of names.
CLASSIFIER_FILE, CLASSIFIER_CLASSES = "classifier.safetensors", "classes.json"


class EmbeddedSet(NamedTuple):
    """The vectors of a whole set in its order, and what the pooling layer did on average.

    ``entropy`` is the mean entropy of the pooling weights (1 is average pooling, 0 a single token), ``mean_weights``
    the mean weight of every place relative to equal weights; both None where the layer has no weights. ``predicted``
    is the class of every image where there was a classifier.
    """

    embeddings: Float[Tensor, "N D"]
    entropy: float | None
    mean_weights: list[float] | None = None
    predicted: Int64[Tensor, " N"] | None = None


class Evaluation(NamedTuple):
    """Retrieval metrics of a set, the embeddings and weights behind them, and what they were measured on.

    ``accuracy`` is the share of images that a classifier got right, None without one. ``metrics`` has no values where
    there is a classifier and every query is alone in its class. ``diagnosis``, the content of threshold.json and a
    warning about flat weights or a classifier of other classes are set by `evaluate_run`.
    """

    metrics: RetrievalMetrics
    entropy: float | None
    embeddings: Float[Tensor, "N D"]
    mean_weights: list[float] | None = None
    classes: int = 0
    split: str = ""
    diagnosis: Diagnosis | None = None
    threshold: dict[str, Any] | None = None
    warning: str | None = None
    accuracy: float | None = None

    def figures(self) -> dict[str, float]:
        """Return the metrics by name, accuracy first where there is one."""
        return {**({} if self.accuracy is None else {"accuracy": self.accuracy}), **self.metrics}

    def counts(self) -> str:
        """Return what the metrics were measured on, in words."""
        metrics = self.metrics
        alone = f" ({metrics.lone_queries:,} left out, alone in their class)" if metrics.lone_queries else ""
        return f"{self.classes:,} classes, {metrics.queries:,} queries{alone}, gallery of {metrics.gallery:,}"


@torch.no_grad()
def embed_images(
    model: Any,
    images: ImageSet | TensorSet,
    *,
    batch_size: int = 128,
    workers: int = 0,
    progress: bool = False,
    autocast: Any = None,
    classifier: nn.Module | None = None,
) -> EmbeddedSet:
    """Embed every image of a set once, in evaluation mode, on the model's device; several processes share the work.

    Args:
        model: an `Embedder`, or another module with ``embed`` and ``out_dim``.
        images: the images.
        batch_size: images at a time.
        workers: processes that load images.
        progress: show a progress bar.
        autocast: a Fabric whose precision is used; full precision without one.
        classifier: takes the pooled features to logits, for the predicted classes.

    Example:
        >>> from gspool import Embedder, data
        >>> letters = data.create("glyphs", split="test", images_per_class=1)
        >>> embed_images(Embedder("small_cnn", dim=8), letters).embeddings.shape
        torch.Size([100, 8])
    """
    device = next(model.parameters()).device
    shard = Shard(len(images))
    batches = math.ceil(len(shard) / batch_size)
    vectors, entropies, weight_sums, classes = [], [], [], []
    with (
        evaluating(model),
        work_bar(f"embedding {images.name}/{images.split}", 0, batches, progress, "batches") as bar,
    ):
        for pictures in _batches(images, shard, batch_size, workers, device):
            with nullcontext() if autocast is None else autocast.autocast():
                embedded = model.embed(pictures.to(device, non_blocking=True))
                if classifier is not None:
                    classes.append(classifier(embedded.pooled).argmax(1))
            vectors.append(embedded.embedding)
            if embedded.weights is not None:
                weights = embedded.weights.to(torch.promote_types(embedded.weights.dtype, torch.float32))
                entropies.append(relative_entropy(weights))
                weight_sums.append(weights.double().sum(0, keepdim=True))
            bar.advance()
    embeddings = gather_blocks(torch.cat(vectors) if vectors else torch.zeros(0, model.out_dim))
    predicted = None
    if classifier is not None:
        predicted = gather_blocks(torch.cat(classes) if classes else torch.zeros(0, dtype=torch.int64))
    flatness = gather_blocks(torch.cat(entropies) if entropies else torch.zeros(0))
    # Images of several sizes have several numbers of places: their weights have no common mean.
    alike = len({part.shape for part in weight_sums}) == 1
    sums = gather_blocks(torch.cat(weight_sums) if alike else torch.zeros(0))
    if not len(flatness):
        return EmbeddedSet(embeddings, None, None, predicted)
    relative = (sums.shape[1] / len(embeddings) * sums.sum(0)).tolist() if len(sums) else None
    mean_weights = None if relative is None else [round(weight, 4) for weight in relative]
    return EmbeddedSet(embeddings, float(flatness.double().mean()), mean_weights, predicted)


def _batches(
    images: ImageSet | TensorSet, shard: Shard, batch_size: int, workers: int, device: torch.device
) -> Iterator[Tensor]:
    if isinstance(images, TensorSet):
        parts = [part for part in torch.tensor(list(shard), dtype=torch.int64).split(batch_size) if len(part)]
        in_memory = isinstance(images.pixels, torch.Tensor)
        read = images.evaluation_images
        yield from map(read, parts) if in_memory else read_ahead(parts, read, READERS, READERS)
        return
    yield from ShieldedLoader(
        images,
        batch_size,
        sampler=shard,
        collate_fn=_stacked,
        num_workers=loading_processes(workers),
        pin_memory=device.type == "cuda",
    )


def _stacked(samples: list[tuple[Tensor, int]]) -> Tensor:
    """Stack images into a batch; those of several sizes are refused as in training."""
    return collate([(image, label, 0) for image, label in samples]).images


def evaluate_images(
    model: Any,
    images: ImageSet | TensorSet,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    batch_size: int = 128,
    workers: int = 0,
    progress: bool = False,
    autocast: Any = None,
    classifier: nn.Module | None = None,
) -> Evaluation:
    """Embed a set and measure retrieval: among all images, or queries in the gallery where the set has both.

    Arguments are those of `embed_images`; ``ks`` are the ranks of R@K. With a classifier there need be nothing to find.

    Raises:
        ValueError: if no image has another one of its class to be found, and there is no classifier.
    """
    embedded = embed_images(
        model,
        images,
        batch_size=batch_size,
        workers=workers,
        progress=progress,
        autocast=autocast,
        classifier=classifier,
    )
    vectors, device = embedded.embeddings, next(model.parameters()).device
    if classifier is None or can_be_searched(images):
        metrics = retrieval_metrics(*searched(vectors, images), ks=ks, device=device)
    else:
        alone, gallery = (len(rows) for rows in search_rows(images))
        metrics = RetrievalMetrics({}, 0, alone, gallery, torch.zeros(alone, 0))
    classes = len(images.labels.unique())
    right = None if classifier is None else accuracy(embedded, images)
    return Evaluation(metrics, embedded.entropy, vectors, embedded.mean_weights, classes, images.split, accuracy=right)


def accuracy(embedded: EmbeddedSet, images: ImageSet | TensorSet) -> float:
    """Compute the share of images whose predicted class is their own."""
    assert embedded.predicted is not None
    return float((embedded.predicted == images.labels).double().mean())


def write_classifier(folder: Path, classifier: Mapping[str, Tensor], class_names: Sequence[str]) -> None:
    """Write a linear classifier, whose logits are ``weight @ pooled + bias``, and the names of their classes."""
    from safetensors.torch import save

    state = {name: value.cpu().contiguous() for name, value in classifier.items()}
    write_atomic(folder / CLASSIFIER_FILE, save(state))
    write_atomic(folder / CLASSIFIER_CLASSES, json.dumps(list(class_names), indent=1).encode())


def read_classifier(folder: Path, device: torch.device, class_names: Sequence[str]) -> nn.Linear | None:
    """Read the classifier of a run; None if it has none. The first logits are of these classes, others come after.

    Raises:
        ValueError: if the names of its classes are not there, or these are not among them.
    """
    from safetensors.torch import load_file

    if not (folder / CLASSIFIER_FILE).is_file():
        return None
    path = folder / CLASSIFIER_CLASSES
    if not path.is_file():
        raise ValueError(f"there is no {path}; write the names of its classes there, a JSON list in their order")
    state, known = load_file(folder / CLASSIFIER_FILE), json.loads(path.read_text(encoding="utf-8"))
    number = {name: row for row, name in enumerate(known)}
    unknown = [name for name in class_names if name not in number]
    if unknown:
        raise ValueError(f"{CLASSIFIER_FILE} does not know {len(unknown)} classes of the data ({some(unknown)})")
    order = [number[name] for name in dict.fromkeys([*class_names, *known])]
    classifier = nn.Linear(state["weight"].shape[1], len(order), device=device)
    classifier.load_state_dict({name: value[order] for name, value in state.items()})
    return classifier


def searched(vectors: Float[Tensor, "N D"], images: ImageSet | TensorSet) -> tuple[Tensor, ...]:
    """Return vectors and labels of the queries, and of the gallery where the set has both."""
    labels, queries = images.labels, query_rows(images)
    if queries is None:
        return vectors, labels
    return vectors[queries], labels[queries], vectors[~queries], labels[~queries]


def search_rows(images: ImageSet | TensorSet) -> tuple[Int64[Tensor, " Q"], Int64[Tensor, " G"]]:
    """Return the rows of the queries and of the gallery; all rows are both where the set has no roles."""
    everything, queries = torch.arange(len(images.labels)), query_rows(images)
    return (everything, everything) if queries is None else (everything[queries], everything[~queries])


def can_be_searched(images: ImageSet | TensorSet) -> bool:
    """Check whether any query has another image of its class to be found.

    Example:
        >>> can_be_searched(TensorSet.of(torch.zeros(3, 1), torch.tensor([0, 1, 2])))
        False
    """
    asked, gallery = search_rows(images)
    counts = images.labels[gallery].bincount(minlength=int(images.labels.max()) + 1)
    # Without roles, a query counts itself.
    return bool((counts[images.labels[asked]] > int(query_rows(images) is None)).any())


class Diagnosis(NamedTuple):
    """Results of an evaluation by class, as plain values.

    ``intervals`` holds [low, high] by metric, of 95 % over classes. ``classes`` has class, queries, p@1 and map@r, the
    worst first. ``confused`` has class, taken_for, how many (count) of the queries of both, and the images of the
    closest mistake (query, found), whose rows in the set are in ``rows``.
    """

    intervals: dict[str, list[float]]
    classes: list[dict[str, Any]]
    confused: list[dict[str, Any]]
    rows: list[tuple[int, int]]


def diagnose(evaluation: Evaluation, images: ImageSet | TensorSet, device: Any = None) -> Diagnosis:
    """Compute the results of an evaluated set by class; there are none where each query is alone in its class."""
    metrics, labels = evaluation.metrics, images.labels
    if not metrics:
        return Diagnosis({}, [], [], [])
    names = [str(name) for name in images.class_names] or [str(label) for label in range(int(labels.max()) + 1)]
    asked, found = search_rows(images)
    pairs = confused_pairs(*searched(evaluation.embeddings, images), count=SHOWN, device=device)
    own = labels[asked]
    bounds = class_bootstrap(metrics.by_query.cpu(), own).tolist()
    rows = [(int(asked[pair.query]), int(found[pair.found])) for pair in pairs]
    return Diagnosis(
        intervals=dict(zip(metrics, bounds, strict=True)),
        classes=[
            {"class": names[each.label], "queries": each.queries, "p@1": each.p_at_1, "map@r": each.map_at_r}
            for each in class_results(metrics, own)
        ],
        confused=[
            {
                "class": names[pair.label],
                "taken_for": names[pair.taken_for],
                "count": pair.mistakes,
                "queries": pair.queries,
                "query": images.describe(query),
                "found": images.describe(other),
            }
            for pair, (query, other) in zip(pairs, rows, strict=True)
        ],
        rows=rows,
    )


def result_lines(
    intervals: Mapping[str, Sequence[float]],
    hardest: Sequence[Mapping[str, Any]],
    confused: Sequence[Mapping[str, Any]],
    classes: int,
) -> list[str]:
    """Return the results by class as lines for a terminal or a page."""
    lines = []
    if intervals:
        bounds = (f"{name.upper()} {100 * intervals[name][0]:.2f} to {100 * intervals[name][1]:.2f}" for name in MAIN)
        lines.append(f"95 % intervals over classes: {', '.join(bounds)}")
    if classes < FEW_CLASSES:
        lines.append(
            f"only {classes} classes were tested: another choice of classes may give quite different figures, and the "
            f"intervals are too narrow; test on {FEW_CLASSES} classes or more before comparing models"
        )
    if hardest:
        worst = (f"{each['class']} ({100 * each['map@r']:.1f})" for each in hardest[:SHOWN])
        lines.append(f"lowest MAP@R: {', '.join(worst)}")
    for each in confused[:PAIRS]:
        lines.append(
            f"confused: {each['class']} / {each['taken_for']}, {each['count']} of {each['queries']} queries, such as "
            f"{each['query']} and {each['found']}"
        )
    return lines


def flat_warning(entropy: float | None, pooling: str) -> str | None:
    """Return a warning about a GSP layer whose weights select nothing, or None."""
    if entropy is None or entropy < FLAT_ENTROPY or "gsp" not in pooling:
        return None
    return (
        f"the pooling weights of {pooling} are flat (entropy {entropy:.5f}, 1 is average pooling), so it selects "
        "nothing: lower --model.pooling_options.mu, or raise --model.pooling_options.epsilon"
    )


def write_classes(folder: Path, diagnosis: Diagnosis) -> None:
    """Write the results of every class as classes.csv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["class", "queries", "p@1", "map@r"])
    writer.writeheader()
    writer.writerows(diagnosis.classes)
    write_atomic(folder / CLASSES, text.getvalue().encode())


def measure_threshold(
    embeddings: Float[Tensor, "N D"],
    labels: Int64[Tensor, " N"],
    split: str,
    wanted: float | None,
    similarity: float | None = None,
) -> dict[str, Any]:
    """Return the content of threshold.json: a threshold (chosen unless given), its pairs, the precision asked for."""
    threshold = calibrate_threshold(embeddings, labels, wanted, similarity=similarity)
    return {**threshold._asdict(), "split": split, "wanted_precision": wanted}


def threshold_in_words(content: Mapping[str, Any]) -> str:
    """Return a line about a threshold, and whether it has the precision that was asked for."""
    wanted = content["wanted_precision"]
    short = wanted is not None and content["precision"] < wanted
    return (
        f"called the same from cosine similarity {content['similarity']:.4f} on: precision "
        f"{100 * content['precision']:.1f} %, recall {100 * content['recall']:.1f} % among {content['pairs']:,} "
        f"{content['split']} pairs, {content['same']:,} of them of one class"
        + (f"; no similarity reaches the precision of {100 * wanted:.1f} % that was asked for" if short else "")
    )


def write_threshold(folders: Sequence[Path], content: Mapping[str, Any]) -> None:
    """Write threshold.json into the folders of a run and of its model."""
    for folder in folders:
        write_atomic(folder / THRESHOLD, (json.dumps(content, indent=2) + "\n").encode())
