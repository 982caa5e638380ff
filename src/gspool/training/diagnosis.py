"""What a user can act on after an evaluation: intervals, the hardest classes, confused classes, a threshold."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gspool.evaluation import Threshold, class_bootstrap, class_results, confused_pairs
from gspool.evaluation.entropy import FLAT_ENTROPY
from gspool.evaluation.verification import THRESHOLD
from gspool.files import write_atomic
from gspool.training.embed import Evaluation, query_rows

if TYPE_CHECKING:
    from gspool.data import ImageSet
    from gspool.training.gpu_data import TensorSet

CLASSES = "classes.csv"
# Below so many classes, one class more or less moves the figures.
FEW_CLASSES = 20
MAIN, SHOWN, PAIRS = ("p@1", "map@r"), 5, 3


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
    """Compute the results of an evaluated set by class."""
    metrics, labels, queries = evaluation.metrics, images.labels, query_rows(images)
    vectors = evaluation.embeddings
    names = [str(name) for name in images.class_names] or [str(label) for label in range(int(labels.max()) + 1)]
    if queries is None:
        asked = found = list(range(len(labels)))
        pairs = confused_pairs(vectors, labels, count=SHOWN, device=device)
    else:
        asked, found = (rows.nonzero().flatten().tolist() for rows in (queries, ~queries))
        pairs = confused_pairs(
            vectors[queries], labels[queries], vectors[~queries], labels[~queries], count=SHOWN, device=device
        )
    own = labels[asked]
    bounds = class_bootstrap(metrics.by_query.cpu(), own).tolist()
    rows = [(asked[pair.query], found[pair.found]) for pair in pairs]
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


def threshold_content(threshold: Threshold, split: str, wanted: float | None) -> dict[str, Any]:
    """Return the content of threshold.json: the threshold, the pairs it was measured on, the precision asked for."""
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
