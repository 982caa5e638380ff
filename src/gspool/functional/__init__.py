"""The mathematics of the paper: tensors in, tensors out, torch alone.

In the order of the data: `distance` (Sec. 4.1) -> `partial_transport` (P2) or `hard_selection` (P1) -> weights and
attributes, all in one as `gsp_pool`; `ridge_regression` (P3); `greedy_centers`. The published algorithms stand in
`gspool.functional.published`.
"""

from gspool.functional.centers import greedy_centers
from gspool.functional.cost import clip_norm, distance
from gspool.functional.pool import gsp_pool
from gspool.functional.results import Pooled, Transport
from gspool.functional.ridge import ridge_regression
from gspool.functional.selection import hard_selection
from gspool.functional.transport import partial_transport

__all__ = [
    "Pooled",
    "Transport",
    "clip_norm",
    "distance",
    "greedy_centers",
    "gsp_pool",
    "hard_selection",
    "partial_transport",
    "ridge_regression",
]
