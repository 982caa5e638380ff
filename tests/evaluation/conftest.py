"""A second, plain computation of everything retrieval: Python loops over float64 numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch


def ranking(query, gallery, itself):
    """Gallery rows by distance, then by row; `itself` is a row to leave out."""
    distances = ((query - gallery) ** 2).sum(1).tolist()
    return [row for row in sorted(range(len(gallery)), key=lambda row: (distances[row], row)) if row != itself]


def unit(vectors):
    return np.stack([vector / np.sqrt((vector**2).sum()) for vector in vectors])


def loop_metrics(queries, labels, gallery=None, gallery_labels=None, ks=(1, 2, 4, 8), distance="l2"):
    """Metrics by the definitions, one query, one rank at a time."""
    own = gallery is None
    queries = queries.double().numpy()
    gallery = queries if own else gallery.double().numpy()
    labels = labels.tolist()
    gallery_labels = labels if own else gallery_labels.tolist()
    if distance == "cosine":
        queries, gallery = unit(queries), unit(gallery)
    totals, counted, lone = {}, 0, 0
    for row, query in enumerate(queries):
        order = ranking(query, gallery, row if own else None)
        hits = [gallery_labels[other] == labels[row] for other in order]
        relevant = sum(hits)
        if relevant == 0:
            lone += 1
            continue
        counted += 1
        average_precision = 0.0
        for rank in range(1, relevant + 1):
            if hits[rank - 1]:
                average_precision += sum(hits[:rank]) / rank
        scores = {"p@1": hits[0], "p@r": sum(hits[:relevant]) / relevant, "map@r": average_precision / relevant}
        scores |= {f"r@{k}": any(hits[:k]) for k in ks}
        for name, score in scores.items():
            totals[name] = totals.get(name, 0.0) + score
    return {name: total / counted for name, total in totals.items()}, counted, lone


@pytest.fixture
def oracle():
    return loop_metrics


@pytest.fixture
def loop_ranking():
    return ranking


@pytest.fixture
def clusters():
    """Make embeddings that lie around class centres, and their labels."""

    def make(rows, classes, dim, seed=0, spread=1.0):
        draws = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, classes, (rows,), generator=draws)
        centres = torch.randn(classes, dim, generator=draws)
        return centres[labels] + spread * torch.randn(rows, dim, generator=draws), labels

    return make
