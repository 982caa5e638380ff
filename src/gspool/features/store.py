"""Tokens of a frozen backbone on disk: shards of raw numbers, memory-mapped, checked by SHA-256, safe against kills."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from gspool.files import sha256_of, write_atomic

if TYPE_CHECKING:
    from jaxtyping import Float, Int8
    from torch import Tensor

FORMAT = 1
Precision = Literal["bf16", "fp16", "fp32", "int8"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int8": torch.int8}
LAYOUT = "layout.json"
SHARD_BYTES = 64 << 20


class TokenLayout(NamedTuple):
    """The numbers of one picture: ``views`` of ``prefix + tokens`` vectors of ``channels`` numbers.

    The prefix holds the class token first, where there is one, then the register tokens. ``grid`` is the height and
    width of the map that the other tokens form, None where they form none.
    """

    views: int
    prefix: int
    class_token: bool
    tokens: int
    channels: int
    grid: tuple[int, int] | None
    precision: Precision

    @property
    def shape(self) -> tuple[int, int, int]:
        """Views, vectors and channels of a picture."""
        return self.views, self.prefix + self.tokens, self.channels

    @property
    def picture_bytes(self) -> int:
        """Bytes of one picture on disk; int8 keeps a scale in float16 for every vector."""
        views, vectors, channels = self.shape
        size = DTYPES[self.precision].itemsize * views * vectors * channels
        return size + 2 * views * vectors if self.precision == "int8" else size

    @property
    def shard_pictures(self) -> int:
        """Pictures of a full shard."""
        return max(1, min(4096, SHARD_BYTES // self.picture_bytes))


class Location(NamedTuple):
    """Where the tokens of a picture are: a shard and a row of it."""

    shard: str
    row: int


class TokenStore:
    """The tokens of pictures in one folder, found by the fingerprint of the picture.

    A shard is ``NAME.bin`` (and ``NAME.scale`` for int8) with ``NAME.json`` beside it, which lists its pictures and the
    checksum of its numbers. The JSON file is written last: without it a shard does not count and is overwritten.

    Args:
        folder: made if need be.
        layout: of the tokens; None reads that of an existing store.

    Raises:
        ValueError: if the folder holds tokens of another layout, or none and ``layout`` is None.

    Example:
        >>> import tempfile
        >>> layout = TokenLayout(1, 0, False, 4, 8, (2, 2), "bf16")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = TokenStore(Path(folder), layout)
        ...     store.write(["a", "b"], torch.ones(2, 1, 4, 8))
        ...     sorted(store.locations()), store.read([store.locations()["b"]]).shape
        (['a', 'b'], torch.Size([1, 1, 4, 8]))
    """

    def __init__(self, folder: Path, layout: TokenLayout | None = None) -> None:
        self.folder = folder
        path = folder / LAYOUT
        if layout is not None and not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps({"format": FORMAT, **layout._asdict()}, indent=1).encode())
        found = _read_json(path)
        if found.pop("format", None) != FORMAT:
            raise ValueError(f"{path} has another format than {FORMAT}; delete the folder to compute the tokens again")
        grid = found.pop("grid")
        self.layout = TokenLayout(**found, grid=None if grid is None else (int(grid[0]), int(grid[1])))
        if layout is not None and layout != self.layout:
            raise ValueError(f"{folder} holds tokens of layout {self.layout}, expected {layout}; choose another folder")
        self._maps: dict[str, tuple[Tensor, Tensor | None]] = {}

    def locations(self) -> dict[str, Location]:
        """Return where the tokens of every finished picture are."""
        found: dict[str, Location] = {}
        for path in self._lists():
            pictures = _read_json(path)["pictures"]
            found |= {fingerprint: Location(path.stem, row) for row, fingerprint in enumerate(pictures)}
        return found

    def _lists(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.json") if path.name != LAYOUT)

    def write(self, fingerprints: Sequence[str], tokens: Float[Tensor, "P V T C"]) -> None:
        """Write one shard; see `write_encoded`."""
        self.write_encoded(fingerprints, [encoded(tokens, self.layout.precision)])

    def write_encoded(self, fingerprints: Sequence[str], parts: Sequence[tuple[Tensor, Tensor | None]]) -> None:
        """Write one shard of `encoded` tokens, part after part; writing it again replaces it.

        Its name is the fingerprint of its first picture. Content is not forced to the disk: a shard that a power cut
        leaves half-written does not have its checksum.

        Raises:
            ValueError: if the tokens do not have the layout.
            OSError: if the disk is full; nothing half-written counts.
        """
        expected = (len(fingerprints), *self.layout.shape)
        found = (sum(len(numbers) for numbers, _ in parts), *parts[0][0].shape[1:])
        if found != expected:
            raise ValueError(f"{len(fingerprints)} pictures need tokens of shape {expected}, got {found}")
        columns = {"bin": [numbers for numbers, _ in parts], "scale": [each for _, each in parts if each is not None]}
        files = {
            ending: self.folder / f".{fingerprints[0]}.{ending}.part" for ending, column in columns.items() if column
        }
        checksums: dict[str, str] = {}
        try:
            for ending, path in files.items():
                digest = hashlib.sha256()
                with path.open("wb") as file:
                    for part in columns[ending]:
                        content: Any = part.contiguous().view(torch.uint8).flatten().numpy()
                        file.write(content)
                        digest.update(content)
                checksums[ending] = digest.hexdigest()
            for ending, path in files.items():
                os.replace(path, self.folder / f"{fingerprints[0]}.{ending}")
            record = json.dumps({"pictures": fingerprints, "sha256": checksums})
            write_atomic(self.folder / f"{fingerprints[0]}.json", record.encode())
        finally:
            for path in files.values():
                path.unlink(missing_ok=True)

    def read(self, locations: Sequence[Location], views: Sequence[int] | int | None = None) -> Tensor:
        """Read tokens [P, V, T, C], or [P, T, C] of one view a picture, through memory maps; int8 comes as bfloat16."""
        count, vectors, channels = self.layout.shape
        shape = (len(locations), *([count] if views is None else []), vectors, channels)
        dtype = torch.bfloat16 if self.layout.precision == "int8" else DTYPES[self.layout.precision]
        out = torch.empty(shape, dtype=dtype, pin_memory=torch.cuda.is_initialized())
        wanted = [views] * len(locations) if views is None or isinstance(views, int) else views
        by_shard: dict[str, list[int]] = {}
        for place, location in enumerate(locations):
            by_shard.setdefault(location.shard, []).append(place)
        for shard, places in by_shard.items():
            numbers, scale = self._map(shard)
            for place in places:
                row, view = locations[place].row, wanted[place]
                part = numbers[row] if view is None else numbers[row, view]
                if scale is not None:
                    part = part.float() * (scale[row] if view is None else scale[row, view])[..., None]
                out[place] = part
        return out

    def damaged(self) -> list[Path]:
        """Compare every shard with its checksum, and return the lists of those that differ."""
        lists = self._lists()
        with ThreadPoolExecutor() as pool:
            return [path for path, damaged in zip(lists, pool.map(_is_damaged, lists), strict=True) if damaged]

    def _map(self, shard: str) -> tuple[Tensor, Tensor | None]:
        if shard not in self._maps:
            views, vectors, channels = self.layout.shape
            numbers = _mapped(self.folder / f"{shard}.bin", DTYPES[self.layout.precision]).view(
                -1, views, vectors, channels
            )
            scale = None
            if self.layout.precision == "int8":
                scale = _mapped(self.folder / f"{shard}.scale", torch.float16).view(-1, views, vectors)
            self._maps[shard] = (numbers, scale)
        return self._maps[shard]

    def __getstate__(self) -> dict[str, Any]:
        # Maps belong to a process; a worker opens its own.
        return {**self.__dict__, "_maps": {}}


def store_key(description: Mapping[str, Any]) -> str:
    """Return the folder name of a store: a hash of everything that decides the tokens besides the pictures.

    Example:
        >>> store_key({"backbone": "a"}) != store_key({"backbone": "b"})
        True
    """
    return hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode()).hexdigest()[:24]


def weights_fingerprint(named: Iterable[tuple[str, Tensor]]) -> str:
    """Compute a hash of names, shapes and values of tensors, such as ``module.state_dict().items()``."""
    digest = hashlib.sha256()
    for name, value in named:
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:24]


def encoded(tokens: Tensor, precision: Precision) -> tuple[Tensor, Tensor | None]:
    """Return tokens in the numbers of a precision, and for int8 the scale of every vector."""
    if precision != "int8":
        return tokens.to(DTYPES[precision]), None
    numbers = tokens.float()
    scale = (numbers.abs().amax(-1) / 127).clamp(min=1e-7).half().float()
    quantised: Int8[Tensor, ...] = (numbers / scale[..., None]).round().clamp(-127, 127).to(torch.int8)
    return quantised, scale.half()


def _is_damaged(path: Path) -> bool:
    """Compare the parts of a shard with the checksums in its list."""
    parts = {path.with_suffix(f".{ending}"): expected for ending, expected in _read_json(path)["sha256"].items()}
    return any(not part.is_file() or sha256_of(part) != expected for part, expected in parts.items())


def _mapped(path: Path, dtype: torch.dtype) -> Tensor:
    size = path.stat().st_size // dtype.itemsize
    return torch.from_file(str(path), shared=False, size=size, dtype=dtype)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it, and its tokens are computed again") from error
    return found
