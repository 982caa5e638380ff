"""How far the convex hulls of classes in the plane overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64
    from numpy import ndarray


class Overlap(NamedTuple):
    """How many pairs of hulls have a common area, and the share of samples that lie in the hull of another class."""

    pairs: int
    strangers: float


def hull_overlap(points: Float64[ndarray, "S 2"], labels: Int64[ndarray, " S"]) -> Overlap:
    """Compare the hull of every class with the samples of all others, and with their hulls.

    Two convex sets are apart where a line separates them, and in the plane that line may be taken along a side of one
    of them: a pair overlaps unless some side of either hull has the whole of the other hull beyond it.

    Example:
        >>> import numpy as np
        >>> square = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
        >>> points = np.concatenate([square, square + 0.5, square + 5.0])
        >>> hull_overlap(points, np.repeat([0, 1, 2], 4))
        Overlap(pairs=1, strangers=0.16666666666666666)
    """
    import numpy as np
    from scipy.spatial import ConvexHull

    classes = np.unique(labels)
    # Each row of equations is a side: its normal, pointing outwards, and its offset.
    sides: dict[Any, Any] = {c: ConvexHull(points[labels == c]).equations for c in classes}

    def outside(which: Any, others: Any) -> Any:
        return others @ sides[which][:, :2].T + sides[which][:, 2]

    pairs = 0
    for place, first in enumerate(classes):
        for second in classes[place + 1 :]:
            apart = [(outside(a, points[labels == b]) >= 0).all(0).any() for a, b in ((first, second), (second, first))]
            pairs += not any(apart)
    strange = np.zeros(len(points), dtype=bool)
    for c in classes:
        strange |= (outside(c, points) < 0).all(1) & (labels != c)
    return Overlap(int(pairs), float(strange.mean()))
