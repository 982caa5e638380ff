"""Pooling layers: one module a file, one interface (`PoolingLayer`), one registry.

`create("gsp", dim=2048)` makes a layer by name, `list()` names them all, `options("gsp")` tells its settings, and
`create_embedding` puts the 1x1 convolution of an embedding model where the layer wants it.
"""

from gspool.pooling.embedding import create_embedding
from gspool.pooling.gsp import GSP
from gspool.pooling.layer import PoolingLayer
from gspool.pooling.registry import create, list, options

__all__ = ["GSP", "PoolingLayer", "create", "create_embedding", "list", "options"]
