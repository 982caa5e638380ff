"""Search against a plain double-precision loop: exact, filtered, in bulk; and the recall of approximate indexes."""

from __future__ import annotations

import json
import tracemalloc
from typing import NamedTuple

import numpy as np
import pytest
import torch

from gspool.search import Hit, Index, label_filter, open_index
from gspool.search.index.approximate import APPROXIMATE_FROM, MEASURED, Approximation, mean_recall, sample
from gspool.search.index.rerank import Rerank
from gspool.search.index.table import ImageRecord, VectorSettings, write_lock
from search.corpus_files import KINDS, write_rows

DIM = 12
SETTINGS = VectorSettings("runs/one", "0123456789abcdef", DIM)


class Drawn(NamedTuple):
    records: list[ImageRecord]
    vectors: np.ndarray


def drawn(count: int, seed: int, classes: int = 7) -> Drawn:
    """Draw unit vectors around a few centres."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(classes, DIM))
    labels = random.integers(classes, size=count)
    vectors = centres[labels] + 0.7 * random.normal(size=(count, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = [None if label == 0 else f"class '{label}'" for label in labels]
    widths = random.integers(10, 500, size=count).tolist()
    records = [ImageRecord(f"/{seed}/{row}.jpg", names[row], widths[row], 20) for row in range(count)]
    return Drawn(records, vectors.astype(np.float32))


def indexed(path, rows: Drawn) -> Index:
    return open_index(write_rows(path, SETTINGS, rows))


def slow_search(rows: Drawn, query: np.ndarray, k: int, allowed=lambda row: True) -> list[int]:
    """Sort all cosines in double precision."""
    vectors = rows.vectors.astype(np.float64)
    scores = vectors @ query.astype(np.float64) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    order = [row for row in np.argsort(-scores, kind="stable") if allowed(row)]
    return [int(row) for row in order[:k]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queries", [1, 2, 300])
def test_exact_search_is_the_order_of_the_cosines(kind, queries, tmp_path):
    rows = drawn(500, seed=1)
    index = indexed(tmp_path / f"vectors.{kind}", rows)
    asked = drawn(queries, seed=2).vectors * 3
    answers = index.search(torch.from_numpy(asked), k=9)
    assert len(answers) == queries
    for query, hits in zip(asked, answers, strict=True):
        assert [hit.row for hit in hits] == slow_search(rows, query, 9)
    best = answers[0][0]
    assert (best.path, best.label) == rows.records[best.row][:2]
    cosine = float(rows.vectors[best.row].astype(np.float64) @ asked[0].astype(np.float64) / np.linalg.norm(asked[0]))
    assert best.score == pytest.approx(cosine, abs=1e-6)


def test_conditions_hold_and_neighbours_are_the_nearest_among_what_is_left(tmp_path):
    rows = drawn(500, seed=1)
    index = indexed(tmp_path / "vectors.lance", rows)
    asked = drawn(3, seed=2).vectors
    for where, allowed in (
        (label_filter(["class '3'"]), lambda row: rows.records[row].label == "class '3'"),
        (label_filter(["class '1'", "class '2'"]), lambda row: rows.records[row].label in ("class '1'", "class '2'")),
        (
            "label IS NULL AND width > 100",
            lambda row: rows.records[row].label is None and rows.records[row].width > 100,
        ),
        ("row < 2", lambda row: row < 2),
    ):
        for query, hits in zip(asked, index.search(asked, 5, where), strict=True):
            assert [hit.row for hit in hits] == slow_search(rows, query, 5, allowed)
    assert index.search(asked, 5, "row < 0") == [[], [], []]
    assert index.labels() == [f"class '{number}'" for number in range(1, 7)]


def test_a_single_vector_is_one_query_and_k_may_exceed_the_corpus(tmp_path):
    rows = drawn(4, seed=1)
    index = indexed(tmp_path / "vectors.lance", rows)
    (hits,) = index.search(rows.vectors[2], k=10)
    assert [hit.row for hit in hits] == slow_search(rows, rows.vectors[2], 10)
    assert hits[0].score == pytest.approx(1.0, abs=1e-6)
    # LanceDB takes numbers of 32 bits.
    assert index.search(rows.vectors[2], k=2**40) == [hits]
    assert index.search(np.empty((0, DIM)), k=3) == []


@pytest.mark.parametrize("rerank", [None, Rerank(expand=3), Rerank(whiten=5)])
def test_an_empty_corpus_has_no_neighbours(rerank, tmp_path):
    index = open_index(write_rows(tmp_path / "vectors.lance", SETTINGS))
    assert index.search(drawn(2, seed=1).vectors, 3, rerank=rerank) == [[], []]


@pytest.mark.parametrize(
    ("vectors", "options", "message"),
    [
        (np.ones((2, 13)), {}, "length 12"),
        (np.stack([np.ones(DIM), np.zeros(DIM)]), {}, "query 1 is zero"),
        (np.full(DIM, np.nan), {}, "query 0 is zero or not finite"),
        (np.ones(DIM), {"k": 0}, "at least 1"),
        (np.ones(DIM), {"rerank": Rerank(whiten=13)}, "length 12 have no 13 directions"),
        (np.ones(DIM), {"rerank": Rerank(expand=2, alpha=np.nan)}, "alpha must be a finite number of at least 0"),
        (np.ones(DIM), {"rerank": Rerank(expand=2, alpha=np.inf)}, "alpha must be a finite number of at least 0"),
        *((np.ones(DIM), {"where": where}, "is not valid") for where in ("colour = 'red'", "label = ", "label = ant")),
    ],
)
def test_wrong_queries_are_refused(vectors, options, message, tmp_path):
    index = indexed(tmp_path / "vectors.lance", drawn(5, seed=1))
    with pytest.raises(ValueError, match=message):
        index.search(vectors, **options)


def test_wrong_labels_and_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one label"):
        label_filter([])
    with pytest.raises(FileNotFoundError, match="gspool embed"):
        open_index(tmp_path / "none.lance")
    with pytest.raises(ValueError, match=r"\.lance, \.parquet, \.npz"):
        open_index(tmp_path / "vectors.csv")


def test_re_ranking_is_that_of_a_plain_loop(tmp_path):
    rows = drawn(400, seed=1)
    index = indexed(tmp_path / "vectors.lance", rows)
    vectors, asked = rows.vectors.astype(np.float64), drawn(3, seed=2).vectors
    values, directions = np.linalg.eigh(np.cov(vectors.T, bias=True))
    scale = directions[:, -5:] / np.sqrt(values[-5:])
    whitened = Drawn(rows.records, (vectors - vectors.mean(0)) @ scale)
    for query in asked:
        near = vectors[slow_search(rows, query, 4)]
        expanded = query + ((near @ query) ** 2) @ near
        (hits,) = index.search(query, 9, rerank=Rerank(expand=4, alpha=2.0))
        assert [hit.row for hit in hits] == slow_search(rows, expanded, 9)
        centred = (query - vectors.mean(0)) @ scale
        candidates = {*slow_search(rows, query, 200)}
        (hits,) = index.search(query, 9, rerank=Rerank(whiten=5))
        assert [hit.row for hit in hits] == slow_search(whitened, centred, 9, candidates.__contains__)
        (hits,) = index.search(query, 9, label_filter(["class '3'"]), rerank=Rerank(5, whiten=5))
        assert {hit.label for hit in hits} == {"class '3'"}
    assert index.search(asked, 2, "row < 0", rerank=Rerank(whiten=5)) == [[], [], []]


def test_duplicates_are_pairs_above_the_threshold_and_chains_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr("gspool.search.index.ROWS_COMPARED", 3)
    angles = np.deg2rad([0, 90, 8, 180, 16, 90, 250])
    vectors = np.zeros((7, DIM), np.float32)
    vectors[:, 0], vectors[:, 1] = np.cos(angles), np.sin(angles)
    records = [ImageRecord(f"/{row}.jpg", f"label {row}") for row in range(7)]
    index = indexed(tmp_path / "vectors.lance", Drawn(records, vectors))
    groups = index.duplicates(similarity=np.cos(np.deg2rad(8.5)))
    assert [[hit.row for hit in group] for group in groups] == [[0, 2, 4], [1, 5]]
    assert [hit.score for hit in groups[0]] == pytest.approx(np.cos(np.deg2rad([0, 8, 16])), abs=1e-6)
    assert (groups[1][1].path, groups[1][1].label) == ("/5.jpg", "label 5")
    assert index.duplicates(1.0) == [groups[1]]
    with pytest.raises(ValueError, match=r"\(0, 1\], got 1\.5"):
        index.duplicates(1.5)


def test_a_large_group_of_duplicates_does_not_keep_all_its_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr("gspool.search.index.ROWS_COMPARED", 16)
    rows = 2_000
    records = [ImageRecord(f"/{row}.jpg") for row in range(rows)]
    index = indexed(tmp_path / "vectors.lance", Drawn(records, np.ones((rows, DIM), np.float32)))
    tracemalloc.start()
    try:
        (group,) = index.duplicates()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [hit.row for hit in group] == [*range(rows)]
    # Less than one number of eight bytes for each of its two million pairs.
    assert peak < 8 * rows**2 / 2


def test_an_approximate_index_reaches_the_recall_it_says(tmp_path):
    rows = drawn(5_000, seed=1, classes=50)
    path = write_rows(tmp_path / "vectors.lance", SETTINGS, rows)
    index, open_before = open_index(path), open_index(path)
    told = []
    built = index.build(recall=0.9, k=5, queries=60, tell=told.append)
    assert built == index.approximation == open_index(path).approximation == open_before.approximation
    assert (built.kind, built.rows, built.queries) == ("IVF_SQ", 5_000, 60)
    assert 0.85 <= built.recall <= 1
    assert any(f"recall@5 {built.recall:.3f} on 60 other vectors" in line for line in told)
    # Its own measure again, by the slow loop, on the half that did not choose the settings.
    own, vectors = sample(index, 120)
    own, vectors = own[60:], vectors[60:]
    shares = []
    for row, hits in zip(own, index.search(vectors, 6), strict=True):
        truth = slow_search(rows, rows.vectors[row], 5, lambda other, row=row: other != row)
        shares.append(len({hit.row for hit in hits if hit.row != row} & set(truth)) / 5)
    assert float(np.mean(shares)) == pytest.approx(built.recall, abs=0.01)
    # Vectors that were not in the corpus are found as well.
    asked = drawn(50, seed=3, classes=50).vectors
    exact = index.search(asked, 5, exact=True)
    assert [[hit.row for hit in hits] for hits in exact] == [slow_search(rows, query, 5) for query in asked]
    assert mean_recall(index.search(asked, 5), exact) == index.recall(asked, 5) > 0.8
    # The line says what was measured, and how to measure one's own.
    assert f"recall@5 {built.recall:.3f} on 60 vectors of this corpus" in repr(index)
    assert "--check" in repr(index)


def test_an_approximate_index_keeps_conditions_and_finds_enough(tmp_path):
    rows = drawn(3_000, seed=1, classes=50)
    index = indexed(tmp_path / "vectors.lance", rows)
    index.build(recall=0.5, queries=20)
    label = rows.records[17].label
    count = sum(other.label == label for other in rows.records)
    for hits in index.search(drawn(4, seed=3).vectors, k=count, where=label_filter([label])):
        assert {hit.label for hit in hits} == {label}
        assert len(hits) == count
    # More neighbours than the partitions that are looked into hold.
    assert [len(hits) for hits in index.search(drawn(3, seed=4).vectors, k=2_900)] == [2_900] * 3


def test_only_large_tables_ask_for_an_index_and_again_when_they_have_grown(tmp_path, monkeypatch):
    index = indexed(tmp_path / "vectors.lance", drawn(5, seed=1))
    assert not index.needs_approximation
    measured = Approximation("IVF_SQ", APPROXIMATE_FROM, 1, 2, 0.99, 10, 200, 1.0)
    for rows, approximation, wanted in (
        (APPROXIMATE_FROM - 1, None, False),
        (APPROXIMATE_FROM, None, True),
        (APPROXIMATE_FROM, measured, False),
        (int(1.1 * APPROXIMATE_FROM), measured, False),
        (2 * APPROXIMATE_FROM, measured, True),
    ):
        monkeypatch.setattr(type(index), "__len__", lambda self, rows=rows: rows)
        index.approximation = approximation
        assert index.needs_approximation is wanted


def test_equal_scores_count_as_equal():
    copies = [Hit(f"{row}.jpg", 0.5, row, None) for row in range(4)]
    assert mean_recall([copies[2:]], [copies[:2]]) == 1.0
    assert mean_recall([[copies[0]]], [copies[:2]]) == 0.5
    assert mean_recall([[copies[0]._replace(score=0.4, row=9)]], [copies[:2]]) == 0.0


def test_wrong_builds_are_refused(tmp_path):
    small = indexed(tmp_path / "small.lance", drawn(5, seed=1))
    with pytest.raises(ValueError, match="needs 1000"):
        small.build()
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        small.build(recall=1.5)
    with pytest.raises(ValueError, match=r"\.lance table"):
        indexed(tmp_path / "copy.npz", drawn(5, seed=1)).build()


def test_a_build_beside_another_writer_is_refused_and_one_that_fails_leaves_exact_search(tmp_path, monkeypatch):
    rows = drawn(1_500, seed=1)
    index = indexed(tmp_path / "vectors.lance", rows)
    built = index.build(recall=0.5, queries=10)
    with write_lock(index.path), pytest.raises(ValueError, match=r"another process is writing to .*vectors\.lance"):
        index.build()
    assert index.approximation == built

    def full(*_, **__):
        raise RuntimeError("lance error: LanceError(IO): No space left on device\nand more")

    monkeypatch.setattr(index.table, "create_index", full)
    with pytest.raises(ValueError, match=r"could be built \(no space left on the disk\)"):
        index.build()
    # What was measured before says nothing about what is there now.
    assert index.approximation is open_index(index.path).approximation is None
    assert [hit.row for hit in index.search(rows.vectors[3], 5)[0]] == slow_search(rows, rows.vectors[3], 5)


def test_a_damaged_measure_says_what_to_do(tmp_path):
    path = write_rows(tmp_path / "vectors.lance", SETTINGS, drawn(1_500, seed=1))
    open_index(path).build(recall=0.5, queries=10)
    (path / MEASURED).write_text(json.dumps({"kind": "IVF_SQ"}))
    # Without its folders, which a server would tell.
    with pytest.raises(ValueError, match=r"^vectors\.lance/.*delete it"):
        open_index(path)


def test_temporary_copies_go_with_their_index(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    index = indexed(tmp_path / "vectors.npz", drawn(5, seed=1))
    assert len([*(tmp_path / "temporary").iterdir()]) == 1
    del index
    assert [*(tmp_path / "temporary").iterdir()] == []
    (tmp_path / "broken.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="gspool embed"):
        open_index(tmp_path / "broken.npz")
    assert [*(tmp_path / "temporary").iterdir()] == []
