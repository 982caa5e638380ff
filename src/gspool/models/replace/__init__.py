"""The one-line swap: find the global pooling of a classifier and put another pooling layer there.

first look (example, observation, recognition) -> choice -> place -> proof -> swap
"""

from __future__ import annotations

from gspool.models.replace.adapter import SwappedPooling
from gspool.models.replace.swap import replace_pooling

__all__ = ["SwappedPooling", "replace_pooling"]
