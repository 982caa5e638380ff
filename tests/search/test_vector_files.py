"""Files of vectors: what goes in comes out, in pieces, after crashes, and never mixed with those of another model."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from gspool.search import npz_stream, vector_pieces
from gspool.search.lance_table import LanceWriter, open_table
from gspool.search.vector_files import PartsWriter, copy_to_lance, open_writer, read_pieces, read_settings
from gspool.search.vector_rows import VectorRows, VectorSettings

SETTINGS = VectorSettings("runs/one", "0123456789abcdef", 3)
KINDS = ("lance", "parquet", "npz")


def some_rows(first: int, count: int) -> VectorRows:
    numbers = range(first, first + count)
    return VectorRows(
        [f"/pictures/ö{'x' * (number % 5)}/{number}.jpg" for number in numbers],
        [None if number % 3 == 0 else f"class {number % 3}" for number in numbers],
        [number + 1 for number in numbers],
        [number + 2 for number in numbers],
        np.arange(3 * first, 3 * (first + count), dtype=np.float32).reshape(count, 3),
    )


def content(path) -> list[dict]:
    if path.suffix == ".lance":
        return open_table(path).to_arrow().to_pylist()
    return [row for piece in read_pieces(path) for row in piece.to_pylist()]


def known_paths(writer) -> list[str]:
    return [path for piece in writer.known() for path in piece["path"].to_pylist()]


def expected(count: int) -> list[dict]:
    rows = some_rows(0, count)
    return [
        {"row": row, "path": path, "label": label, "width": width, "height": height, "vector": vector.tolist()}
        | {"size": None, "modified": None, "source": None}
        for row, (path, label, width, height, vector) in enumerate(zip(*rows[:5], strict=True))
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_come_back_as_they_went_in_however_they_were_cut(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(vector_pieces, "GROUP", 4)
    monkeypatch.setattr(npz_stream, "CHUNK", 3)
    path = tmp_path / "deep" / f"vectors.{kind}"
    first = 0
    for count in (5, 1, 7):
        writer = open_writer(path, SETTINGS)
        assert writer.rows == first
        assert known_paths(writer) == some_rows(0, first).paths
        writer.append(some_rows(first, count))
        first += count
        if count != 1:
            writer.finish()
    assert content(path) == expected(13)
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]


def test_other_programs_read_the_files(tmp_path):
    for kind in ("parquet", "npz"):
        writer = open_writer(tmp_path / f"vectors.{kind}", SETTINGS)
        writer.append(some_rows(0, 4))
        writer.finish()
    table = pq.read_table(tmp_path / "vectors.parquet")
    assert table.column_names == ["row", "path", "label", "width", "height", "vector", "size", "modified", "source"]
    with np.load(tmp_path / "vectors.npz") as arrays:
        assert arrays["path"].tolist() == table["path"].to_pylist()
        assert arrays["label"].tolist() == ["", "class 1", "class 2", ""]
        assert arrays["vector"].dtype == np.float32
        np.testing.assert_array_equal(arrays["vector"], np.arange(12).reshape(4, 3))
        assert json.loads(str(arrays["settings"])) == SETTINGS._asdict()


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_parts_survive_a_crash_and_those_already_joined_are_dropped(kind, tmp_path):
    path = tmp_path / f"vectors.{kind}"
    first = PartsWriter(path, SETTINGS)
    first.append(some_rows(0, 3))
    first.append(some_rows(3, 2))
    # A crash in the middle of a part leaves a file that is not yet called a part.
    (first.folder / "rows-000000000005.writing").write_bytes(b"half")
    again = PartsWriter(path, SETTINGS)
    assert again.rows == 5
    kept = {part.name: part.read_bytes() for part in again.folder.glob("*.parquet")}
    again.finish()
    # A crash between the joined file and the deletion of its parts.
    again.folder.mkdir()
    for name, part in kept.items():
        (again.folder / name).write_bytes(part)
    third = PartsWriter(path, SETTINGS)
    assert (third.rows, known_paths(third)) == (5, some_rows(0, 5).paths)
    third.append(some_rows(5, 2))
    third.finish()
    assert content(path) == expected(7)
    assert not third.folder.exists()


def test_a_crash_while_joining_leaves_the_former_file(tmp_path, monkeypatch):
    path = tmp_path / "vectors.parquet"
    writer = PartsWriter(path, SETTINGS)
    writer.append(some_rows(0, 3))
    writer.finish()
    writer.append(some_rows(3, 3))

    def crash(*_, **__):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", crash)
        with pytest.raises(OSError, match="no space"):
            writer.finish()
    assert content(path) == expected(3)
    PartsWriter(path, SETTINGS).finish()
    assert content(path) == expected(6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [{"fingerprint": "f" * 16}, {"dim": 4}, {"precision": "bfloat16"}])
def test_vectors_of_another_model_are_refused(kind, change, tmp_path):
    path = tmp_path / f"vectors.{kind}"
    writer = open_writer(path, SETTINGS)
    writer.append(some_rows(0, 2))
    if "dim" in change:
        writer.finish()
    with pytest.raises(ValueError, match=f"do not compare.*{next(iter(change))}"):
        open_writer(path, SETTINGS._replace(**change))
    assert open_writer(path, SETTINGS._replace(model="moved/elsewhere")).rows == 2


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_corpus_is_an_empty_file(kind, tmp_path):
    writer = open_writer(tmp_path / f"vectors.{kind}", SETTINGS)
    writer.finish()
    assert content(tmp_path / f"vectors.{kind}") == []
    assert open_writer(tmp_path / f"vectors.{kind}", SETTINGS).rows == 0


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_a_copy_in_lance_is_the_same_table(kind, tmp_path):
    writer = open_writer(tmp_path / f"vectors.{kind}", SETTINGS)
    writer.append(some_rows(0, 9))
    writer.finish()
    copy_to_lance(tmp_path / f"vectors.{kind}", tmp_path / "copy.lance")
    assert content(tmp_path / "copy.lance") == expected(9)


@pytest.mark.parametrize("name", ["vectors.csv", "vectors", "vectors.lance.zip"])
def test_other_kinds_of_files_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"\.lance, \.parquet, \.npz"):
        open_writer(tmp_path / name, SETTINGS)


def test_files_of_others_are_refused(tmp_path):
    np.savez(tmp_path / "their.npz", vector=np.zeros((2, 3)))
    pq.write_table(pq.read_table(_written(tmp_path)).replace_schema_metadata({}), tmp_path / "their.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    (tmp_path / "broken.npz").write_bytes(b"PK and then nothing")
    for name, word in (
        ("their.npz", "gspool embed"),
        ("their.parquet", "does not say which model"),
        ("broken.parquet", "no readable Parquet"),
        ("broken.npz", "gspool embed"),
    ):
        with pytest.raises(ValueError, match=word):
            read_settings(tmp_path / name)
    (tmp_path / "their.lance").mkdir()
    with pytest.raises(ValueError, match="no Lance table"):
        open_table(tmp_path / "their.lance")


def _written(folder):
    writer = open_writer(folder / "ours.parquet", SETTINGS)
    writer.append(some_rows(0, 2))
    writer.finish()
    return folder / "ours.parquet"


def test_wrong_vectors_are_refused_before_they_are_written(tmp_path):
    writer = LanceWriter(tmp_path / "vectors.lance", SETTINGS)
    rows = some_rows(0, 2)
    with pytest.raises(ValueError, match=r"0\.jpg.*float32"):
        writer.append(rows._replace(vectors=np.full((2, 3), np.nan, dtype=np.float32)))
    with pytest.raises(ValueError, match="length 3"):
        writer.append(rows._replace(vectors=np.zeros((2, 4), dtype=np.float32)))
    assert writer.rows == 0
    assert content(tmp_path / "vectors.lance") == []
