"""Files of vectors: what goes in comes out, after crashes too, and never mixed with those of another model."""

from __future__ import annotations

import itertools
import json
import resource
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from gspool.search import open_index
from gspool.search.index import export
from gspool.search.index.export import finish_store, open_store, read_settings
from gspool.search.index.table import ImageRecord, LanceWriter, VectorSettings
from search.corpus_files import KINDS, rows_of, write_rows

SETTINGS = VectorSettings("runs/one", "0123456789abcdef", 3)


def some_rows(first: int, count: int) -> tuple[list[ImageRecord], np.ndarray]:
    records = [
        ImageRecord(
            f"/pictures/ö{'x' * (number % 5)}/{number}.jpg",
            None if number % 3 == 0 else f"class {number % 3}",
            number + 1,
            number + 2,
        )
        for number in range(first, first + count)
    ]
    return records, np.arange(3 * first, 3 * (first + count), dtype=np.float32).reshape(count, 3)


def paths(count: int) -> list[str]:
    return [record.path for record in some_rows(0, count)[0]]


def written(path, *counts: int):
    """Write rows in several appends."""
    firsts = [0, *itertools.accumulate(counts)]
    return write_rows(path, SETTINGS, *map(some_rows, firsts, counts))


def expected(count: int) -> list[dict]:
    records, vectors = some_rows(0, count)
    return [{**record._asdict(), "row": row, "vector": vectors[row].tolist()} for row, record in enumerate(records)]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_come_back_as_they_went_in_however_they_were_cut(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "GROUP", 4)
    path = tmp_path / "deep" / f"my vectors.{kind}" if kind != "lance" else tmp_path / "deep" / "vectors.lance"
    assert rows_of(written(path)) == []
    first = 0
    for count in (5, 1, 7):
        writer = open_store(path, SETTINGS)
        assert writer.rows == first
        assert [path for piece in writer.read(["path"]) for path in piece["path"].to_pylist()] == paths(first)
        writer.append(*some_rows(first, count))
        first += count
        # A run that ends here goes on where it was, with its export still to be written.
        if count != 1:
            finish_store(writer, path)
    assert rows_of(path) == expected(13)
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]


def test_an_export_of_many_pieces_keeps_its_rows_together(tmp_path):
    """Each array of an .npz file is read from the table by itself, and all must come in one order."""
    path = written(tmp_path / "vectors.npz", *[700] * 13)
    with np.load(path) as arrays:
        assert arrays["row"].tolist() == list(range(9100))
        np.testing.assert_array_equal(arrays["vector"][:, 0], 3 * arrays["row"])
        assert arrays["path"].tolist() == paths(9100)


def test_other_programs_read_the_files(tmp_path):
    table = pq.read_table(written(tmp_path / "vectors.parquet", 4))
    assert table.column_names == ["row", "path", "label", "width", "height", "vector", "size", "modified", "source"]
    with np.load(written(tmp_path / "vectors.npz", 4)) as arrays:
        assert arrays["path"].tolist() == table["path"].to_pylist()
        assert arrays["label"].tolist() == ["", "class 1", "class 2", ""]
        assert arrays["vector"].dtype == np.float32
        np.testing.assert_array_equal(arrays["vector"], np.arange(12).reshape(4, 3))
        assert json.loads(str(arrays["settings"])) == SETTINGS._asdict()


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_a_crash_leaves_the_former_file_and_the_work_since(kind, tmp_path, monkeypatch):
    path = written(tmp_path / f"vectors.{kind}", 3)
    writer = open_store(path, SETTINGS)
    writer.append(*some_rows(3, 3))

    def crash(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(export.os, "replace", crash)
        with pytest.raises(OSError, match="no space"):
            finish_store(writer, path)
    assert rows_of(path) == expected(3)
    finish_store(open_store(path, SETTINGS), path)
    assert rows_of(path) == expected(6)
    # A crash while the file is read back: what is half there is not taken for the whole.
    shutil.rmtree(tmp_path / f"vectors.{kind}.parts", ignore_errors=True)
    LanceWriter(tmp_path / f"vectors.{kind}.parts" / export.ASIDE, SETTINGS).append(*some_rows(0, 2))
    assert open_store(path, SETTINGS).rows == 6


def test_a_crash_while_the_working_table_is_deleted_costs_nothing(tmp_path, monkeypatch):
    path = tmp_path / "vectors.parquet"

    def half(folder, **_):
        for file in [*folder.rglob("*.manifest"), *folder.rglob("*.txn")]:
            file.unlink()
        raise KeyboardInterrupt

    writer = LanceWriter(tmp_path / "vectors.parquet.parts" / "vectors.lance", SETTINGS)
    writer.append(*some_rows(0, 3))
    with monkeypatch.context() as patch:
        patch.setattr(export.shutil, "rmtree", half)
        with pytest.raises(KeyboardInterrupt):
            finish_store(writer, path)
    assert open_store(path, SETTINGS).rows == 3
    assert rows_of(path) == expected(3)


def test_a_file_whose_rows_are_unchanged_is_not_written_again(tmp_path):
    path = written(tmp_path / "vectors.parquet", 3)
    before = path.stat().st_ino
    finish_store(open_store(path, SETTINGS), path)
    assert path.stat().st_ino == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [{"fingerprint": "f" * 16}, {"dim": 4}, {"precision": "bfloat16"}])
def test_vectors_of_another_model_are_refused(kind, change, tmp_path):
    path = written(tmp_path / f"vectors.{kind}", 2)
    with pytest.raises(ValueError, match=f"do not compare.*{next(iter(change))}"):
        open_store(path, SETTINGS._replace(**change))
    assert open_store(path, SETTINGS._replace(model="moved/elsewhere")).rows == 2


def test_files_of_others_are_refused(tmp_path):
    np.savez(tmp_path / "their.npz", vector=np.zeros((2, 3)))
    theirs = pq.read_table(written(tmp_path / "ours.parquet", 2)).replace_schema_metadata({})
    pq.write_table(theirs, tmp_path / "their.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    (tmp_path / "broken.npz").write_bytes(b"PK and then nothing")
    for name in ("their.npz", "their.parquet", "broken.parquet", "broken.npz"):
        with pytest.raises(ValueError, match=rf"{name} .*gspool embed"):
            read_settings(tmp_path / name)
    broken = bytearray(written(tmp_path / "half.npz", 200).read_bytes())
    broken[1000:1400] = bytes(400)
    (tmp_path / "half.npz").write_bytes(broken)
    with pytest.raises(ValueError, match=r"half\.npz is damaged"):
        rows_of(tmp_path / "half.npz")
    (tmp_path / "their.lance").mkdir()
    with pytest.raises(FileNotFoundError, match=r"there is no .*their\.lance"):
        open_index(tmp_path / "their.lance")
    # As a crash may leave it.
    (tmp_path / "empty.lance").mkdir()
    assert rows_of(written(tmp_path / "empty.lance", 2)) == expected(2)
    (tmp_path / "their.lance" / "notes.txt").write_text("no table")
    with pytest.raises(ValueError, match="not a Lance table"):
        open_index(tmp_path / "their.lance")


def test_wrong_vectors_are_refused_before_they_are_written(tmp_path):
    writer = LanceWriter(tmp_path / "vectors.lance", SETTINGS)
    records, _ = some_rows(0, 2)
    with pytest.raises(ValueError, match=r"0\.jpg.*float32"):
        writer.append(records, np.full((2, 3), np.nan))
    with pytest.raises(ValueError, match="length 3"):
        writer.append(records, np.zeros((2, 4)))
    assert writer.rows == 0
    assert rows_of(tmp_path / "vectors.lance") == []


def test_a_full_disk_is_one_sentence_and_keeps_the_rows(tmp_path):
    path = tmp_path / "vectors.lance"
    writer = LanceWriter(path, SETTINGS)
    writer.append(*some_rows(0, 10))
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A disk that takes no larger file stands for one that is full.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, usual[1]))
    try:
        with pytest.raises(ValueError, match=rf"{path} could not be written \(.*run the same command again"):
            writer.append(*some_rows(10, 20_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert rows_of(path) == expected(10)
    assert LanceWriter(path, SETTINGS).next_row == 10
