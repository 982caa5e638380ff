"""The memory given to a search bounds what it holds at any moment."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gspool.evaluation import retrieval_metrics


class LiveBytes(TorchDispatchMode):
    """Count the bytes of all tensors that operations have made and that are still alive."""

    def __init__(self, *known):
        super().__init__()
        self.users, self.sizes = {}, {}
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.note(tensor)
        return result

    def note(self, tensor):
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place == 0 or place in self.known:
            return
        self.users[place] = self.users.get(place, 0) + 1
        self.sizes[place] = storage.nbytes()
        weakref.finalize(tensor, self.forget, place)
        self.peak = max(self.peak, sum(self.sizes.values()))

    def forget(self, place):
        self.users[place] -= 1
        if self.users[place] == 0:
            del self.users[place], self.sizes[place]


@pytest.mark.parametrize(
    ("megabytes", "classes", "duplicates"), [(3, 600, 0), (3, 30, 0), (3, 3, 0), (12, 3, 0), (12, 600, 1000)]
)
def test_memory_is_kept_to(clusters, megabytes, classes, duplicates):
    # Few large classes need many ranks at once, and duplicates are searched again with ever more candidates.
    embeddings, labels = clusters(2000, classes, 16)
    embeddings[:duplicates] = 0.0
    with LiveBytes(embeddings, labels) as live:
        retrieval_metrics(embeddings, labels, memory=megabytes * 2**20)
    # On top come blocks of fixed size, and labels, counts and scores, a few numbers a query.
    assert live.peak < megabytes * 2**20 + 2 * 2**20 + 2000 * 8 * 20


def test_memory_is_kept_to_where_hundreds_of_neighbours_are_selected_in_groups(clusters):
    embeddings, labels = clusters(20_000, 100, 8)
    queries, query_labels = embeddings[:1500].clone(), labels[:1500]
    with LiveBytes(embeddings, labels, queries, query_labels) as live:
        retrieval_metrics(queries, query_labels, embeddings, labels, memory=12 * 2**20)
    assert 6 * 2**20 < live.peak < 12 * 2**20 + 2 * 2**20 + 20_000 * 8 * 20
