"""NumPy's .npz, written and read in pieces: numpy itself would hold whole arrays in memory."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from gspool.search.vector_rows import COLUMNS, VectorSettings

SETTINGS = "settings"
CHUNK = 4096
# A path may be long; numpy stores every text of an array at the length of the longest.
SHORTEST_TEXT = 1
# Arrays have no empty places.
UNKNOWN = -1


def write_npz(path: Path, pieces: Callable[[], Iterable[pa.Table]], settings: VectorSettings) -> None:
    """Write pieces of a table as arrays row, path, label, width, height, vector ..., and the settings as JSON.

    The pieces are gone through once for every array. A text that is not known is empty, a number -1.
    """
    rows, longest = 0, {"path": SHORTEST_TEXT, "label": SHORTEST_TEXT, "source": SHORTEST_TEXT}
    for piece in pieces():
        rows += piece.num_rows
        for name, length in longest.items():
            longest[name] = max(length, *(len(text or "") for text in piece[name].to_pylist()), SHORTEST_TEXT)
    kinds: dict[str, Any] = {
        "row": "<i8",
        "width": "<i4",
        "height": "<i4",
        "vector": "<f4",
        "size": "<i8",
        "modified": "<i8",
    }
    kinds.update({name: f"<U{length}" for name, length in longest.items()})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in COLUMNS:
            shape = (rows, settings.dim) if name == "vector" else (rows,)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_header(member, np.dtype(kinds[name]), shape)
                for piece in pieces():
                    member.write(_as_array(piece, name, np.dtype(kinds[name])).tobytes())
        text = np.array(json.dumps(settings._asdict()))
        with archive.open(f"{SETTINGS}.npy", "w") as member:
            _write_header(member, text.dtype, ())
            member.write(text.tobytes())


def read_settings(path: Path) -> VectorSettings:
    """Read which model made the vectors.

    Raises:
        ValueError: if the file is not such an archive.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            content = json.loads(str(arrays[SETTINGS]))
        return VectorSettings(**content)
    except (KeyError, ValueError, TypeError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} does not hold vectors of gspool embed ({error})") from error


def read_npz(path: Path, columns: tuple[str, ...] = COLUMNS) -> Iterator[dict[str, np.ndarray]]:
    """Give the arrays of an archive piece by piece; a file of an earlier version does not have all of them."""
    with zipfile.ZipFile(path) as archive:
        columns = tuple(name for name in columns if f"{name}.npy" in archive.namelist())
        members = {name: archive.open(f"{name}.npy") for name in columns}
        try:
            heads = {name: _read_header(member) for name, member in members.items()}
            rows = heads[columns[0]][1][0]
            for first in range(0, rows, CHUNK):
                count = min(CHUNK, rows - first)
                piece = {}
                for name, (kind, shape) in heads.items():
                    part = (count, *shape[1:])
                    size = kind.itemsize * int(np.prod(part))
                    piece[name] = np.frombuffer(_read_exactly(members[name], size, path), dtype=kind).reshape(part)
                yield piece
        finally:
            for member in members.values():
                member.close()


def _write_header(member: IO[bytes], kind: np.dtype, shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(member, header)


def _read_header(member: IO[bytes]) -> tuple[np.dtype, tuple[int, ...]]:
    np.lib.format.read_magic(member)
    shape, _, kind = np.lib.format.read_array_header_1_0(member)
    return kind, shape


def _read_exactly(member: IO[bytes], size: int, path: Path) -> bytes:
    content = member.read(size)
    if len(content) != size:
        raise ValueError(f"{path} ends too early; it is damaged, write it again")
    return content


def _as_array(piece: pa.Table, name: str, kind: np.dtype) -> np.ndarray:
    column = piece[name].combine_chunks()
    if name == "vector":
        return np.asarray(column.flatten(), dtype=kind)
    if kind.kind == "U":
        return np.array([text or "" for text in column.to_pylist()], dtype=kind)
    return np.asarray(column.fill_null(UNKNOWN), dtype=kind)
