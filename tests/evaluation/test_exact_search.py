"""The search is exact: ties, near ties, coarse products and small memory change nothing."""

from __future__ import annotations

import itertools

import pytest
import torch

from gspool.evaluation import nearest_neighbours, retrieval_metrics
from gspool.evaluation.exact_search import Classes, search, working_memory
from gspool.evaluation.metric_space import MetricSpace
from gspool.evaluation.top_k import select_largest


def neighbours(space, depth, memory=None):
    rows = torch.arange(len(space.queries))
    return search(space, rows, depth, working_memory(space, memory)).tolist()


def expected_neighbours(loop_ranking, queries, gallery, depth, own):
    queries, gallery = queries.double().numpy(), gallery.double().numpy()
    return [loop_ranking(query, gallery, row if own else None)[:depth] for row, query in enumerate(queries)]


# From plain to grouped selection; in the longest rows a few, dozens and hundreds take three ways.
@pytest.mark.parametrize("columns", [1, 8, 255, 256, 512, 2048, 16384])
@pytest.mark.parametrize("k", [1, 7, 65, 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_selection_equals_a_sort(columns, k, dtype):
    k = min(k, columns)
    # As many below zero as above, so that the order of negative numbers is tried as well.
    scores = torch.randn(5, columns, generator=torch.Generator().manual_seed(columns), dtype=torch.float64)
    scores = (scores - scores.quantile(1 - k / (2 * columns))).to(dtype)
    chosen = select_largest(scores, k)
    ordered = scores.sort(dim=1, descending=True)
    assert torch.equal(chosen.values, ordered.values[:, :k])
    assert torch.equal(chosen.columns, ordered.indices[:, :k])


@pytest.mark.parametrize(("columns", "k"), [(1024, 4), (16384, 150)])
def test_selection_of_equal_entries_gives_distinct_columns(columns, k):
    scores = torch.zeros(3, columns)
    # A row with as many larger ones as are asked for, beside rows in which all are equal.
    scores[1, :: columns // k] = 1.0
    chosen = select_largest(scores, k)
    assert torch.equal(chosen.values, torch.tensor([0.0, 1.0, 0.0])[:, None].expand(-1, k))
    assert all(len(set(row)) == k for row in chosen.columns.tolist())
    assert torch.equal(scores.gather(1, chosen.columns), chosen.values)


def drawn(rows, dim, dtype=torch.float32):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(rows), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("vectors", "depth"),
    [
        (drawn(3, 1), 2),
        (drawn(300, 2), 1),
        (drawn(300, 7), 65),
        (drawn(1030, 3), 5),
        # All vectors agree to ten digits or more: float32 scores of the raw vectors could tell none of them apart.
        (5.0 + 1e-10 * drawn(500, 4, torch.float64), 6),
        (5.0 + 1e-14 * drawn(500, 4, torch.float64), 6),
        # One far outlier does not blur the rest.
        (drawn(400, 4).index_fill(0, torch.tensor([17]), 1e6), 6),
    ],
)
def test_neighbours_equal_a_loop(loop_ranking, vectors, depth, dtype):
    expected = expected_neighbours(loop_ranking, vectors, vectors, depth, own=True)
    assert neighbours(MetricSpace(vectors, dtype=dtype), depth) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_are_ordered_by_gallery_row(loop_ranking, dtype):
    # Corners of a cube, each many times over: every distance is shared by dozens, more than the slack of a search.
    corners = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    gallery = corners[torch.randint(0, 8, (600,), generator=torch.Generator().manual_seed(0))]
    for depth in (1, 3, 90):
        expected = expected_neighbours(loop_ranking, gallery[:60], gallery, depth, own=False)
        assert neighbours(MetricSpace(gallery[:60], gallery, dtype=dtype), depth) == expected


@pytest.mark.parametrize("seed", range(3))
def test_asked_for_hits_a_search_measures_only_what_decides_their_ranks(loop_ranking, monkeypatch, seed):
    # Distances on a lattice tie by the dozen; its cells are classes, but for some rows that are mislabelled.
    draws = torch.Generator().manual_seed(seed)
    gallery = torch.randint(0, 5, (500, 2), generator=draws).float()
    labels = (5 * gallery[:, 0] + gallery[:, 1]).long()
    labels[::9] = labels[::9].flip(0)
    space, rows, classes = MetricSpace(gallery[:80], gallery), torch.arange(80), Classes(labels[:80], labels)
    measured = []
    distances = space.squared_distances
    monkeypatch.setattr(space, "squared_distances", lambda *pairs: measured.append(len(pairs[0])) or distances(*pairs))
    found = search(space, rows, 70, working_memory(space, None), classes)
    for_hits = sum(measured)
    in_order = search(space, rows, 70, working_memory(space, None))
    expected = torch.tensor(expected_neighbours(loop_ranking, gallery[:80], gallery, 70, own=False))
    assert torch.equal(in_order, expected)
    assert torch.equal(classes.hits(rows, found), classes.hits(rows, expected))
    assert all(len(set(row)) == 70 for row in found.tolist())
    assert 0 < for_hits < (sum(measured) - for_hits) / 2


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_coarse_products_change_nothing(loop_ranking, precision):
    """With reduced precision allowed, scores may be off by the rounding of their inputs; the order must not be."""
    vectors = drawn(700, 6)
    expected = expected_neighbours(loop_ranking, vectors, vectors, 5, own=True)
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = precision
    try:
        space = MetricSpace(vectors)
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
    bits = {"tf32": 13, "bf16": 16}[precision]
    # Cut the mantissa as the hardware would.
    space.columns = ((space.columns.view(torch.int32) >> bits) << bits).view(torch.float32)
    assert space.doubt > MetricSpace(vectors).doubt
    assert neighbours(space, 5) == expected


def test_the_error_bound_holds_and_is_not_idle():
    for dim, dtype in itertools.product((1, 8, 300), (torch.float32, torch.float64)):
        space = MetricSpace(drawn(256, dim, torch.float64), dtype=dtype)
        rows = torch.arange(256)
        scored = space.scores(rows, out=torch.empty(256, 256, dtype=dtype))
        approximate = scored.squared_norms[:, None] - 2 * scored.scores.double()
        exact = space.squared_distances(rows.repeat_interleave(256), rows.repeat(256)).view(256, 256)
        error = (approximate - exact)[~torch.eye(256, dtype=torch.bool)].abs().max()
        assert 0 < error < space.doubt < 1e4 * error


@pytest.mark.parametrize("memory", [60_000, 300_000, 3_000_000, None])
def test_memory_does_not_change_the_result(clusters, memory):
    embeddings, labels = clusters(900, 300, 5, seed=4)
    embeddings[100:140] = embeddings[100]
    reference = retrieval_metrics(embeddings, labels, memory=100_000_000)
    assert retrieval_metrics(embeddings, labels, memory=memory) == reference


def test_autocast_does_not_change_the_result(clusters):
    embeddings, labels = clusters(900, 300, 16, seed=4)
    reference = retrieval_metrics(embeddings, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert retrieval_metrics(embeddings, labels) == reference
    with torch.inference_mode():
        assert retrieval_metrics(embeddings.clone(), labels) == reference


def test_a_dead_network_ties_everything():
    metrics = retrieval_metrics(torch.zeros(2000, 64), torch.arange(2000) % 2, ks=(1, 2))
    # Neighbours come in order of rows: 1 and 2 for row 0, 0 and 2 for row 1 (both wrong), 0 and 1 for all others.
    assert metrics["p@1"] == 999 / 2000
    assert metrics["r@2"] == 1999 / 2000
    assert neighbours(MetricSpace(torch.ones(4, 2)), 3) == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    assert neighbours(MetricSpace(torch.rand(2, 2), torch.ones(4, 2)), 2) == [[0, 1], [0, 1]]


def test_distances_are_those_of_the_vectors_given():
    queries, gallery = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0], [4.0, 4.0], [5.0, 0.0]])
    by_length = nearest_neighbours(queries, gallery, k=9)
    assert by_length.indices.tolist() == [[0, 2, 1]]
    torch.testing.assert_close(by_length.distances, torch.tensor([[5.0, 16.0, 25.0]]).double().sqrt())
    by_angle = nearest_neighbours(queries, gallery, k=2, distance="cosine")
    assert by_angle.indices.tolist() == [[2, 1]]
    torch.testing.assert_close(by_angle.distances, torch.tensor([[0.0, 1 - 0.5**0.5]]).double())


@pytest.mark.gpu
def test_a_gpu_finds_what_a_cpu_finds(clusters):
    embeddings, labels = clusters(3000, 400, 32)
    embeddings[5:60] = embeddings[5]
    expected = retrieval_metrics(embeddings, labels)
    # The neighbours are the same; sums over them may round differently.
    assert dict(retrieval_metrics(embeddings, labels, device="cuda")) == pytest.approx(dict(expected), abs=1e-12)
    with torch.autocast("cuda", dtype=torch.float16):
        under_autocast = retrieval_metrics(embeddings.cuda(), labels)
    assert dict(under_autocast) == pytest.approx(dict(expected), abs=1e-12)
    found = nearest_neighbours(embeddings, k=9)
    assert torch.equal(nearest_neighbours(embeddings.cuda(), k=9).indices.cpu(), found.indices)
