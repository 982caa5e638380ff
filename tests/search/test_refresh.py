"""A corpus that changes from day to day: a file of vectors follows pictures that change, get other labels, or go."""

from __future__ import annotations

import os

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gspool.search import embed_corpus, open_index, search_images
from gspool.search.corpus import sources, stream
from gspool.search.index.approximate import MEASURED, sample
from gspool.search.index.rerank import Rerank
from gspool.search.index.table import ImageRecord, LanceWriter, VectorSettings, open_table
from search.corpus_files import KINDS, draw_picture, rows_of, stuck_in_the_third_batch, write_rows

SETTINGS = VectorSettings("runs/one", "0f", 12)
# The columns of version 0.1.0.
OLD = ["row", "path", "label", "width", "height", "vector"]


@pytest.fixture
def out(request, tmp_path):
    """A .lance table; another kind of file where a test asks for it."""
    return tmp_path / f"vectors.{getattr(request, 'param', 'lance')}"


EVERY_KIND = pytest.mark.parametrize("out", KINDS, indirect=True)


def named_rows(path) -> dict[str, dict]:
    """Give the rows by the last two parts of their paths, of which there must be one each."""
    rows = rows_of(path)
    named = {"/".join(row["path"].split("/")[-2:]): row for row in rows}
    assert len(named) == len(rows)
    return named


def counts(result) -> tuple[int, ...]:
    return result.embedded, result.changed, result.skipped, result.relabelled, result.gone, result.removed, result.rows


def make_old(path) -> None:
    """Write a file once more as version 0.1.0 first did: without sizes, times and sources."""
    if path.suffix == ".lance":
        table = open_table(path).to_arrow().select(OLD)
        lancedb.connect(path.parent).create_table(path.stem, table, mode="overwrite")
        assert open_table(path).schema.names == OLD
    elif path.suffix == ".parquet":
        pq.write_table(pq.read_table(path).select(OLD), path)
    else:
        with np.load(path) as arrays:
            np.savez(path, **{name: arrays[name] for name in (*OLD, "settings")})


def later(path, seconds: int = 5) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + seconds * 10**9 + 1))


@EVERY_KIND
def test_a_changed_picture_takes_the_place_of_its_row(small_model, pictures, out):
    embed_corpus(small_model, pictures, out)
    before = named_rows(out)
    draw_picture(pictures / "bee" / "2.png", 999, size=(60, 50))
    draw_picture(pictures / "bee" / "new.png", 998)
    result = embed_corpus(small_model, pictures, out)
    assert counts(result) == (2, 1, 14, 0, 0, 0, 16)
    after = named_rows(out)
    assert (after["bee/2.png"]["row"], after["bee/2.png"]["width"]) == (before["bee/2.png"]["row"], 60)
    assert after["bee/new.png"]["row"] == 15
    assert {name for name in before if before[name] != after[name]} == {"bee/2.png"}
    answer = next(search_images(small_model, open_index(out), pictures / "bee" / "2.png", k=16))
    assert answer.hits[0].path == answer.query
    assert answer.hits[0].score == pytest.approx(1, abs=1e-6)
    assert len({hit.path for hit in answer.hits}) == 16
    # What was taken over is remembered: the next time there is nothing to do, and a fresh file says the same.
    assert counts(embed_corpus(small_model, pictures, out)) == (0, 0, 16, 0, 0, 0, 16)
    fresh = out.with_name(f"fresh{out.suffix}")
    embed_corpus(small_model, pictures, fresh)
    for name, row in named_rows(fresh).items():
        np.testing.assert_allclose(row.pop("vector"), after[name].pop("vector"), rtol=1e-5, atol=1e-6)
        assert {**after[name], "row": row["row"]} == row


def test_another_time_is_enough_and_the_same_time_with_another_size_too(small_model, pictures, out):
    touched, same_size, same_time = (pictures / "ant" / f"{number}.png" for number in range(3))
    for path, seed in ((same_size, 1), (same_time, 2)):
        draw_picture(path.with_suffix(".bmp"), seed)
        os.replace(path.with_suffix(".bmp"), path)
    embed_corpus(small_model, pictures, out)
    before = named_rows(out)
    later(touched)
    # A picture without compression has as many bytes whatever it shows.
    size = same_size.stat().st_size
    draw_picture(same_size.with_suffix(".bmp"), 77)
    os.replace(same_size.with_suffix(".bmp"), same_size)
    later(same_size)
    assert same_size.stat().st_size == size
    time = same_time.stat().st_mtime_ns
    draw_picture(same_time, 78)
    os.utime(same_time, ns=(time, time))
    assert counts(embed_corpus(small_model, pictures, out)) == (3, 3, 12, 0, 0, 0, 15)
    after = named_rows(out)
    np.testing.assert_allclose(after["ant/0.png"]["vector"], before["ant/0.png"]["vector"], rtol=1e-5, atol=1e-6)
    for name in ("ant/1.png", "ant/2.png"):
        assert np.abs(np.subtract(after[name]["vector"], before[name]["vector"])).max() > 1e-3
    assert counts(embed_corpus(small_model, pictures, out)) == (0, 0, 15, 0, 0, 0, 15)


def test_a_picture_that_changes_while_it_is_read_is_noticed_the_next_time(small_model, pictures, out, monkeypatch):
    embed = stream.embed_batch

    def meanwhile(*arguments):
        draw_picture(pictures / "ant" / "3.png", 500)
        later(pictures / "ant" / "3.png")
        return embed(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(stream, "embed_batch", meanwhile)
        embed_corpus(small_model, pictures, out)
    assert counts(embed_corpus(small_model, pictures, out))[:3] == (1, 1, 14)


def test_a_changed_picture_that_cannot_be_read_keeps_its_row_and_is_tried_again(small_model, pictures, out):
    embed_corpus(small_model, pictures, out)
    before = named_rows(out)
    (pictures / "cat" / "1.png").write_bytes(b"half of a pict")
    result = embed_corpus(small_model, pictures, out)
    assert (result.bad, result.skipped, result.gone, result.rows) == (1, 14, 0, 15)
    assert named_rows(out) == before
    draw_picture(pictures / "cat" / "1.png", 321)
    assert counts(embed_corpus(small_model, pictures, out))[:2] == (1, 1)


def test_gone_pictures_are_counted_and_taken_out_when_asked_for(small_model, pictures, out):
    embed_corpus(small_model, pictures, out)
    before = named_rows(out)
    for name in ("ant/4.png", "cat/4.png"):
        (pictures / name).unlink()
    assert counts(embed_corpus(small_model, pictures, out)) == (0, 0, 13, 0, 2, 0, 15)
    assert named_rows(out) == before
    draw_picture(pictures / "bee" / "new.png", 500)
    assert counts(embed_corpus(small_model, pictures, out, remove_gone=True)) == (1, 0, 13, 0, 2, 2, 14)
    after = named_rows(out)
    assert {*before} - {*after} == {"ant/4.png", "cat/4.png"}
    assert all(after[name] == before[name] for name in {*before} & {*after})
    # A number belongs to one picture, also where the count of rows falls below it.
    assert after["bee/new.png"]["row"] == 15
    assert counts(embed_corpus(small_model, pictures, out, remove_gone=True)) == (0, 0, 14, 0, 0, 0, 14)


def test_rows_of_other_sources_stay(small_model, pictures, out, tmp_path):
    for name in ("a", "b"):
        draw_picture(tmp_path / "scans" / f"{name}.png", ord(name))
    (tmp_path / "list.csv").write_text(f"path\n{pictures}/cat/0.png\n{pictures}/cat/1.png\n")
    glob, listed = f"{tmp_path}/scans/*.png", tmp_path / "list.csv"
    embed_corpus(small_model, [pictures / "ant", glob, listed, pictures / "bee" / "0.png"], out)
    for path in ("ant/0.png", "bee/0.png", "cat/0.png", "../scans/a.png"):
        (pictures / path).unlink()
    (tmp_path / "list.csv").write_text(f"path\n{pictures}/cat/0.png\n")
    # Of the list, a picture that is still there and no longer named; and one that is named and no longer there.
    for named, gone in (
        ([pictures / "ant"], {"ant/0.png"}),
        ([glob], {"scans/a.png"}),
        ([pictures / "bee"], {"bee/0.png"}),
        ([listed], {"cat/0.png", "cat/1.png"}),
    ):
        before = {*named_rows(out)}
        result = embed_corpus(small_model, named, out, remove_gone=True)
        assert result.removed == len(gone)
        assert before - {*named_rows(out)} == gone
    assert {*named_rows(out)} == {"ant/1.png", "ant/2.png", "ant/3.png", "ant/4.png", "scans/b.png"} | {
        f"bee/{number}.png" for number in range(1, 5)
    }


def test_what_cannot_be_reached_today_is_not_gone(small_model, pictures, out, tmp_path, monkeypatch):
    embed_corpus(small_model, pictures, out)
    os.rename(pictures / "bee", tmp_path / "elsewhere")
    stat = os.stat

    def failing(path, *arguments, **options):
        if str(path).startswith(str(pictures / "bee")):
            raise OSError(5, "Input/output error")
        return stat(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(sources.os, "stat", failing)
        assert embed_corpus(small_model, pictures, out, remove_gone=True).gone == 0
    assert embed_corpus(small_model, pictures, out, remove_gone=True).removed == 5


def test_labels_follow_their_source_without_embedding(small_model, pictures, out, tmp_path):
    listed = tmp_path / "list.csv"
    lines = [f"{path},{path.parent.name}" for path in sorted(pictures.glob("*/*.png"))]
    listed.write_text("\n".join(["path,label", *lines]))
    embed_corpus(small_model, listed, out)
    before = named_rows(out)
    listed.write_text("\n".join(["path,label", *lines]).replace(",bee", ",wasp"))
    assert counts(embed_corpus(small_model, listed, out)) == (0, 0, 15, 5, 0, 0, 15)
    after = named_rows(out)
    assert open_index(out).labels() == ["ant", "cat", "wasp"]
    assert all({**after[name], "label": before[name]["label"]} == before[name] for name in before)
    # A glob knows no labels: it forgets none, not even of a picture that has changed.
    draw_picture(pictures / "bee" / "0.png", 444)
    assert counts(embed_corpus(small_model, f"{pictures}/*/*.png", out)) == (1, 1, 14, 0, 0, 0, 15)
    assert named_rows(out)["bee/0.png"]["label"] == "wasp"


@EVERY_KIND
def test_a_file_of_an_earlier_version_goes_on(small_model, pictures, out):
    embed_corpus(small_model, pictures, out)
    whole = named_rows(out)
    make_old(out)
    query = pictures / "ant" / "1.png"
    assert next(search_images(small_model, open_index(out), query)).hits[0].path == str(query)
    # What changed before it was known when, is not noticed; what is gone, is.
    draw_picture(pictures / "ant" / "0.png", 600)
    (pictures / "cat" / "4.png").unlink()
    draw_picture(pictures / "cat" / "new.png", 601)
    assert counts(embed_corpus(small_model, pictures, out)) == (1, 0, 14, 0, 1, 0, 16)
    rows = named_rows(out)
    assert rows["ant/0.png"]["vector"] == whole["ant/0.png"]["vector"]
    assert rows["cat/new.png"]["modified"] == (pictures / "cat" / "new.png").stat().st_mtime_ns
    assert (rows["cat/4.png"]["size"], rows["cat/4.png"]["source"]) == (None, None)
    # From here on the times are known.
    for name in whole:
        if name not in ("ant/0.png", "cat/4.png"):
            assert rows[name] == whole[name]
    draw_picture(pictures / "ant" / "0.png", 602)
    later(pictures / "ant" / "0.png")
    assert counts(embed_corpus(small_model, pictures, out, remove_gone=True)) == (1, 1, 14, 0, 1, 1, 15)


def test_rows_of_an_earlier_version_that_lie_elsewhere_stay(small_model, pictures, out, tmp_path):
    draw_picture(tmp_path / "other" / "x.png", 1)
    embed_corpus(small_model, [pictures, tmp_path / "other"], out)
    make_old(out)
    (tmp_path / "other" / "x.png").unlink()
    assert embed_corpus(small_model, pictures, out, remove_gone=True).gone == 0
    (tmp_path / "list.csv").write_text(f"path\n{pictures}/ant/0.png\n")
    assert embed_corpus(small_model, tmp_path / "list.csv", out, remove_gone=True).removed == 1
    assert len(named_rows(out)) == 15


def test_a_kill_in_the_middle_of_embedding_and_of_embedding_again(model_folder, small_model, pictures, tmp_path):
    again = [tmp_path / "again.lance", tmp_path / "again.parquet"]
    files = [*again, tmp_path / "first.lance"]
    for out in again:
        embed_corpus(small_model, pictures, out, batch_size=4)
    for number, path in enumerate(sorted(pictures.glob("*/*.png"))):
        draw_picture(path, 700 + number)
        later(path)
    # The third batch never ends, so that the kill comes in the middle.
    with stuck_in_the_third_batch(model_folder, [(pictures, out) for out in files]):
        for out in files:
            with pytest.raises(ValueError, match="another process is writing"):
                embed_corpus(small_model, pictures, out)
    # A picture that is replaced before and after the kill has three vectors in table and file by then.
    draw_picture(pictures / "ant" / "0.png", 800)
    later(pictures / "ant" / "0.png", 10)
    fresh = embed_corpus(small_model, pictures, tmp_path / "fresh.lance", batch_size=4)
    for out in files:
        changed = 8 if out in again else 1
        assert counts(embed_corpus(small_model, pictures, out, batch_size=4)) == (8, changed, 7, 0, 0, 0, 15)
        for row, expected in zip(rows_of(out), rows_of(fresh.path), strict=True):
            np.testing.assert_allclose(row.pop("vector"), expected.pop("vector"), rtol=1e-5, atol=1e-6)
            assert row == expected


def drawn(count: int, seed: int, replacing: bool = False) -> tuple[list[ImageRecord], np.ndarray]:
    vectors = np.random.default_rng(seed).normal(size=(count, 12)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return [ImageRecord(f"/{row}.jpg", row=row if replacing else None) for row in range(count)], vectors


def test_an_approximate_index_follows_what_is_replaced_and_taken_out(tmp_path):
    records, first = drawn(2_000, seed=1)
    path = write_rows(tmp_path / "vectors.lance", SETTINGS, (records, first))
    open_index(path).build(recall=0.9, queries=20)
    # Open since before, as a server's is.
    served = open_index(path)
    writer = LanceWriter(path, SETTINGS)
    records, second = drawn(50, seed=2, replacing=True)
    writer.append(records, second)
    added, new = drawn(10, seed=3)
    writer.append(added, new)
    writer.amend(pa.table({"row": [60, 61], "label": ["ant", "bee"]}))
    writer.remove([*range(100, 150)])
    for step in ("written", "finished"):
        for index in (served, open_index(path)):
            assert len(index) == 1_960
            assert [hits[0].row for hits in index.search(new, 1)] == [*range(2_000, 2_010)], step
            assert index.approximation is not None
            assert [hits[0].row for hits in index.search(second, 1)] == [*range(50)], step
            # The old vectors of rows that were replaced, or taken out, find others.
            old = np.concatenate([first[:50], first[100:150]])
            assert max(hits[0].score for hits in index.search(old, 1)) < 0.999
            assert [(hits[0].row, hits[0].label) for hits in index.search(first[60:62], 1)] == [
                (60, "ant"),
                (61, "bee"),
            ]
            assert all(len({hit.row for hit in hits}) == 20 for hits in index.search(second, 20))
        writer.finish()
    assert open_table(path).index_stats("vector_idx").num_unindexed_rows == 0
    again = open_index(path).build(recall=0.9, queries=20)
    # The settings reach 0.9 on the vectors that chose them; twenty others may show a little less.
    assert (again.rows, again.recall >= 0.75) == (1_960, True)


def test_a_search_that_a_writer_overtakes_is_done_again(tmp_path, monkeypatch):
    path, first, second = tmp_path / "vectors.lance", drawn(5, seed=1), drawn(5, seed=2, replacing=True)
    LanceWriter(path, SETTINGS).append(*first)
    index = open_index(path)
    query, calls = type(index.table.search(first[1][0])), []
    ask = query.to_arrow

    def overtaken(request):
        calls.append(1)
        if len(calls) == 1:
            write_rows(path, SETTINGS, second)
            raise RuntimeError("lance error: Not found: vectors.lance/data/0.lance")
        return ask(request)

    monkeypatch.setattr(query, "to_arrow", overtaken)
    hit = index.search(second[1][3], 1)[0][0]
    assert (hit.row, round(hit.score, 5)) == (3, 1.0)
    monkeypatch.setattr(query, "to_arrow", lambda request: (_ for _ in ()).throw(RuntimeError("something else")))
    with pytest.raises(RuntimeError, match="something else"):
        index.search(second[1][3], 1)


@pytest.mark.parametrize(
    ("read", "asked"),
    [
        (len, lambda table: (type(table), "count_rows")),
        (lambda index: len(index.labels()), lambda table: (type(table.search()), "to_arrow")),
        (lambda index: len(sample(index, 9)[0]), lambda table: (type(table.take_offsets([0])), "to_arrow")),
        (lambda index: 5 * (index.approximation is None), lambda table: (type(table), "list_indices")),
    ],
)
def test_whatever_is_read_while_a_writer_is_done_is_read_again(read, asked, tmp_path, monkeypatch):
    records, vectors = drawn(5, seed=1)
    named = [record._replace(label=record.path) for record in records]
    index = open_index(write_rows(tmp_path / "vectors.lance", SETTINGS, (named, vectors)))
    # Another process is about to build an index.
    (index.path / MEASURED).write_text("{}")
    kind, name = asked(index.table)
    answer, calls = getattr(kind, name), []

    def overtaken(*arguments):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("lance error: Not found: vectors.lance/data/0.lance")
        return answer(*arguments)

    monkeypatch.setattr(kind, name, overtaken)
    assert read(index) == 5
    assert len(calls) > 1


@pytest.mark.parametrize("rerank", [Rerank(expand=5), Rerank(whiten=5)])
def test_a_row_that_is_removed_between_a_search_and_its_re_ranking_is_left_out(rerank, tmp_path, monkeypatch):
    records, vectors = drawn(5, seed=1)
    index = open_index(write_rows(tmp_path / "vectors.lance", SETTINGS, (records, vectors)))
    read = index.vectors
    monkeypatch.setattr(index, "vectors", lambda rows: read(rows - {3}))
    (hits,) = index.search(vectors[0], 5, rerank=rerank)
    assert {hit.row for hit in hits} == ({0, 1, 2, 4} if rerank.whiten else {*range(5)})
