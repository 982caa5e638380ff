"""The one-line swap: find the global pooling of a classifier and put another pooling layer there.

swap (run the network once) -> observe -> choose -> place (and prove)
"""

from __future__ import annotations

from gspool.models.replace.place import SwappedPooling
from gspool.models.replace.swap import replace_pooling

__all__ = ["SwappedPooling", "replace_pooling"]
