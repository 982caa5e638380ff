"""The tokens of a labelled image set: rows of a store, read from disk or held in the memory of a device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from gspool.features.store import Location, TokenLayout, TokenStore

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

    from gspool.data import ImageSet

LOADED_AT_ONCE = 128


class TokenSet:
    """Tokens of the pictures of an `ImageSet`, in its order.

    Args:
        images: the pictures, for labels, class names and roles.
        store: where their tokens are.
        locations: one a picture.
        fingerprints: of the pictures.

    ``memory`` is None while tokens are read from disk, and a tensor [P, V, T, C] once `load` has put them on a device.
    """

    def __init__(
        self, images: ImageSet, store: TokenStore, locations: Sequence[Location], fingerprints: Sequence[str]
    ) -> None:
        self.images, self.store, self.locations = images, store, list(locations)
        self.identity = _identity(images, store, fingerprints)
        self.labels = images.labels
        self.memory: Tensor | None = None
        self._shared: tuple[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Memory does not travel to another process. Of GPU memory its handle does: see `open_shared`.
        shared = None
        if self.memory is not None and self.memory.is_cuda:
            with suppress(RuntimeError):
                shared = reduce_tensor(self.memory)
        return {**self.__dict__, "memory": None, "_shared": shared}

    def __len__(self) -> int:
        return len(self.locations)

    @property
    def layout(self) -> TokenLayout:
        """The numbers of one picture."""
        return self.store.layout

    @property
    def memory_bytes(self) -> int:
        """Bytes that `load` takes."""
        views, vectors, channels = self.layout.shape
        return len(self) * views * vectors * channels * (4 if self.layout.precision == "fp32" else 2)

    def load(self, device: torch.device | str, views: int | None = None) -> TokenSet:
        """Put the tokens, or only the first views of them, into the memory of a device."""
        count, vectors, channels = self.layout.shape
        kept = count if views is None else views
        first = self.store.read(self.locations[:1])
        self.memory = torch.empty(len(self), kept, vectors, channels, dtype=first.dtype, device=device)
        for part in torch.arange(len(self)).split(LOADED_AT_ONCE):
            read = self.store.read([self.locations[place] for place in part.tolist()])
            self.memory[part[0] : part[-1] + 1].copy_(read[:, :kept], non_blocking=True)
        return self

    def open_shared(self) -> bool:
        """Open the tokens in GPU memory of the process that this one got them from; return whether they are in memory.

        The other process must keep them for as long. Where the system does not share GPU memory, nothing is opened.
        """
        if self.memory is None and self._shared is not None:
            rebuild, arguments = self._shared
            with suppress(RuntimeError):
                self.memory = rebuild(*arguments)
        return self.memory is not None

    def rows(self, indices: Int64[Tensor, " B"], views: Int64[Tensor, " B"] | int = 0) -> Float[Tensor, "B T C"]:
        """Return one view of each of some pictures, from memory where they were loaded, else from disk."""
        if self.memory is not None:
            places = indices.to(self.memory.device)
            return self.memory[places, views.to(self.memory.device) if isinstance(views, torch.Tensor) else views]
        chosen = [self.locations[index] for index in indices.tolist()]
        return self.store.read(chosen, views.tolist() if isinstance(views, torch.Tensor) else views)

    @property
    def views(self) -> int:
        """Views at hand: those in memory once loaded, else those on disk."""
        return self.layout.views if self.memory is None else self.memory.shape[1]

    def entries(self) -> Tensor | TokenRows:
        """Return every view of every picture as a row, ``picture * views + view``: a tensor, or rows on disk."""
        return TokenRows(self) if self.memory is None else self.memory.flatten(0, 1)


def _identity(images: ImageSet, store: TokenStore, fingerprints: Sequence[str]) -> str:
    """Return a hash of what is learned from: backbone, weights and views of the store, pictures, labels, classes."""
    content = [store.folder.name, *fingerprints, images.labels.tolist(), list(images.class_names)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class TokenRows:
    """Single views of pictures as rows that a `gspool.training.TensorSet` can index, read from disk when asked for.

    Row ``r`` is view ``r % views`` of picture ``r // views``.
    """

    def __init__(self, tokens: TokenSet) -> None:
        self.tokens, self.views = tokens, tokens.layout.views

    def __len__(self) -> int:
        return self.views * len(self.tokens)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, vectors and channels."""
        return len(self), *self.tokens.layout.shape[1:]

    @property
    def device(self) -> torch.device:
        """Where rows are read to: the memory of the host."""
        return torch.device("cpu")

    def __getitem__(self, rows: Int64[Tensor, " B"]) -> Float[Tensor, "B T C"]:
        return self.tokens.rows(rows // self.views, rows % self.views)
