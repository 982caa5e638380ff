"""Same class or not? A threshold on the cosine similarity of two embeddings, calibrated on labelled pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import normalize

from gspool.evaluation.checked_input import as_embeddings, as_labels

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

# The name of the file that holds a threshold, in the folder of a run and of its model.
THRESHOLD = "threshold.json"
# Similarities are counted in so many steps from -1 to 1, and of larger sets so many rows are compared.
STEPS, LARGEST = 20_000, 8_192


class Threshold(NamedTuple):
    """Two embeddings are called the same from ``similarity`` on, with this precision and recall among the pairs.

    ``pairs`` counts all of them and ``same`` those of one class. Precision depends on their ratio: among many more
    classes than here, it is lower.
    """

    similarity: float
    precision: float
    recall: float
    f1: float
    pairs: int
    same: int


def calibrate_threshold(
    embeddings: Any,
    labels: Any,
    precision: float | None = None,
    *,
    similarity: float | None = None,
    seed: int = 0,
) -> Threshold:
    """Choose the similarity from which two embeddings are called the same, on all pairs of labelled embeddings.

    Args:
        embeddings: embeddings [N, D].
        labels: their classes.
        precision: choose the lowest similarity with at least this precision; the most precise where none reaches it.
            None chooses the largest F1.
        similarity: measure this threshold instead of choosing one.
        seed: of the rows that are compared, where there are more than 8,192.

    Raises:
        ValueError: if there is no pair of one class or none of two, or the precision is not in (0, 1].

    Example:
        >>> points = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> calibrate_threshold(points, [0, 0, 1, 1])[1:]
        (1.0, 1.0, 1.0, 6, 2)
    """
    if precision is not None and not 0 < precision <= 1:
        raise ValueError(f"a precision lies in (0, 1], got {precision}")
    counts = _count_pairs(embeddings, labels, seed)
    same, other = counts.sum(1).tolist()
    if not same or not other:
        raise ValueError(
            f"a threshold needs pairs of one class and pairs of two classes, got {same} and {other}; give at least two "
            "classes, one of them of two images"
        )
    # How many pairs there are from each similarity on.
    right, wrong = counts.flip(1).cumsum(1).flip(1).double()
    precisions, f1 = right / (right + wrong).clamp(min=1), 2 * right / (right + wrong + same)
    reached = (precisions >= (precision or 0)).nonzero().flatten()
    if similarity is not None:
        place = _step(torch.tensor(similarity, dtype=torch.float64)).item()
    elif precision is None:
        place = f1.argmax().item()
    else:
        place = int(reached[0]) if len(reached) else precisions.argmax().item()
    at = int(place)
    chosen = round(2 * at / STEPS - 1, 4) if similarity is None else similarity
    return Threshold(
        chosen, float(precisions[at]), float(right[at]) / same, float(f1[at]), pairs=same + other, same=same
    )


def read_threshold(folder: Path) -> float | None:
    """Return the similarity from which two embeddings of a model count as the same; None where it has none.

    Raises:
        ValueError: if the file is damaged.
    """
    path = folder / THRESHOLD
    if not path.is_file():
        return None
    try:
        return check_threshold(float(json.loads(path.read_text(encoding="utf-8"))["similarity"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no threshold ({error}); calibrate it again") from error


def check_threshold(similarity: float) -> float:
    """Return a threshold.

    Raises:
        ValueError: if it is not a cosine.
    """
    if not -1 <= similarity <= 1:
        raise ValueError(f"threshold is a cosine and lies in [-1, 1], got {similarity}")
    return similarity


def _count_pairs(embeddings: Any, labels: Any, seed: int) -> Int[Tensor, "2 S"]:
    """Count the pairs of one class, and of two classes, by similarity."""
    vectors = as_embeddings(embeddings, "embeddings")
    classes = as_labels(labels, "labels", len(vectors), vectors.device)
    if len(vectors) > LARGEST:
        rows = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))[:LARGEST].to(vectors.device)
        vectors, classes = vectors[rows], classes[rows]
    vectors = normalize(vectors.float())
    counts = torch.zeros(2, STEPS + 1, dtype=torch.int64)
    columns = torch.arange(len(vectors), device=vectors.device)
    for rows in columns.split(256):
        later = columns > rows[:, None]
        steps = _step(vectors[rows] @ vectors.T)
        alike = classes[rows][:, None] == classes
        for place, pairs in enumerate((alike & later, ~alike & later)):
            counts[place] += steps[pairs].bincount(minlength=STEPS + 1).cpu()
    return counts


def _step(similarities: Float[Tensor, ...]) -> Int[Tensor, ...]:
    return ((similarities.double() + 1) * (STEPS / 2) + 1e-6).long().clamp(0, STEPS)
