"""Pictures through a frozen backbone: decoding, computing and writing side by side."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool import data
from gspool.data.crops import draw_crops, resample
from gspool.data.decode import BrokenImageError
from gspool.data.image_source import SelectedImages
from gspool.features.store import ShardWriter, TokenLayout, TokenStore, encoded
from gspool.models.pixels import PixelNormalisation

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from torch import Tensor

    from gspool.data import ImageSet
    from gspool.features.extract import FeatureConfig
    from gspool.models import Backbone

# Batches that are decoded while one is computed.
AHEAD = 2


class Picture(NamedTuple):
    """A picture to compute: its fingerprint, and its set and place in the list of sets."""

    fingerprint: str
    part: int
    row: int


class Shard(NamedTuple):
    """What a finished shard covers: how many pictures, and why some of them could not be read."""

    pictures: int
    broken: dict[str, str]


class _Computed(NamedTuple):
    """A batch on its way to the host: wait for ``event`` before reading the tokens."""

    fingerprints: list[str]
    encoded: tuple[Tensor, Tensor | None]
    broken: dict[str, str]
    event: Any


class Extractor:
    """A backbone on its device, and the pictures that run through it."""

    def __init__(self, backbone: Backbone, sets: Sequence[ImageSet], config: FeatureConfig, device: str) -> None:
        self.backbone, self.sets, self.config, self.device = backbone, tuple(sets), config, device
        self.normalisation = PixelNormalisation(backbone.pixels)
        self.tokens_shape = (0, 0, 0)

    def start(self) -> None:
        """Put the backbone on its device."""
        self.backbone.to(self.device).eval()
        self.normalisation.to(self.device)

    def layout(self) -> TokenLayout:
        """Run one blank picture, to learn how many tokens there are."""
        self.start()
        blank = torch.zeros(1, 3, *self.backbone.pixels.crop, dtype=torch.uint8)
        features = self.features(blank)
        if features.map.ndim not in (3, 4):
            raise ValueError(
                f"the backbone has no patch tokens: it returns {tuple(features.map.shape[1:])} for a picture, expected "
                "a map [C, h, w] or tokens [N, C]; take it before its pooling"
            )
        grid = (features.map.shape[2], features.map.shape[3]) if features.map.ndim == 4 else None
        registers = 0 if features.registers is None else features.registers.shape[1]
        class_token = features.class_token is not None
        layout = TokenLayout(
            views=len(self.config.views) + self.config.crops,
            prefix=registers + class_token,
            class_token=class_token,
            tokens=features.map.shape[2] * features.map.shape[3] if grid else features.map.shape[1],
            channels=self.backbone.channels,
            grid=grid,
            precision=self.config.precision,
        )
        self.tokens_shape = layout.shape
        return layout

    def shards(self, store: TokenStore, pictures: Sequence[Picture]) -> Generator[Shard]:
        """Compute tokens and write them, shard after shard; decoding, computing and writing run side by side."""
        left = len(pictures)
        with (
            # Closed here: a generator with threads that is left to the garbage collector may end inside another thread,
            # and wait there for a lock of `threading` for ever.
            closing(self._computed(pictures)) as computed,
            ThreadPoolExecutor(1, thread_name_prefix="write") as disk,
            full_disk_explained(store.folder),
        ):
            while left:
                done = 0
                broken: dict[str, str] = {}
                written: deque[Future[None]] = deque()
                with ShardWriter(store) as shard:
                    while done < min(store.layout.shard_pictures, left):
                        batch = next(computed)
                        done += len(batch.fingerprints) + len(batch.broken)
                        broken |= batch.broken
                        written.append(disk.submit(_append, shard, batch))
                        if len(written) > 1:
                            written.popleft().result()
                    for part in written:
                        part.result()
                left -= done
                yield Shard(done, broken)

    def _computed(self, pictures: Sequence[Picture]) -> Generator[_Computed]:
        """Yield the tokens of batch after batch, one behind: the device computes while the last one is written."""
        waiting: deque[_Computed] = deque()
        with closing(self._decoded(pictures)) as decoded:
            for batch, crops, broken in decoded:
                sound = [picture.fingerprint for picture in batch if picture.fingerprint not in broken]
                if broken:
                    crops = crops[[picture.fingerprint not in broken for picture in batch]]
                waiting.append(self._sent(sound, crops, broken))
                if len(waiting) > 1:
                    yield waiting.popleft()
            yield from waiting

    def _decoded(self, pictures: Sequence[Picture]) -> Generator[tuple[Sequence[Picture], Tensor, dict[str, str]]]:
        """Yield batches of pictures, decoded by threads two batches ahead, and why some cannot be read."""
        workers = self.config.workers or len(os.sched_getaffinity(0))
        size, pin = self.config.batch_size, self.device.startswith("cuda")
        shape = (1 + self.config.crops, 3, *self.backbone.pixels.crop)
        waiting: deque[tuple[Sequence[Picture], Tensor, list[Future[str | None]]]] = deque()

        def finished() -> tuple[Sequence[Picture], Tensor, dict[str, str]]:
            batch, crops, futures = waiting.popleft()
            reasons = zip(batch, [future.result() for future in futures], strict=True)
            return batch, crops, {picture.fingerprint: reason for picture, reason in reasons if reason is not None}

        with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
            try:
                for first in range(0, len(pictures), size):
                    batch = pictures[first : first + size]
                    crops = torch.empty(len(batch), *shape, dtype=torch.uint8, pin_memory=pin)
                    futures = [pool.submit(self._decode, each, crops[row]) for row, each in enumerate(batch)]
                    waiting.append((batch, crops, futures))
                    if len(waiting) > AHEAD:
                        yield finished()
                while waiting:
                    yield finished()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _decode(self, picture: Picture, out: UInt8[Tensor, "K 3 H W"]) -> str | None:
        """Decode a picture into its place in a batch; return why it cannot be read."""
        try:
            out.copy_(self._crops(self.sets[picture.part], picture.row))
        except BrokenImageError as problem:
            return str(problem)
        return None

    def _sent(self, fingerprints: list[str], crops: UInt8[Tensor, "B K 3 H W"], broken: dict[str, str]) -> _Computed:
        """Compute the tokens of a batch, and begin to copy them to the host."""
        numbers, scale = encoded(self._tokens(crops), self.config.precision)
        if not numbers.is_cuda:
            return _Computed(fingerprints, (numbers, scale), broken, None)
        on_host = _begin_copy(numbers), None if scale is None else _begin_copy(scale)
        event = torch.cuda.Event()
        event.record()
        return _Computed(fingerprints, on_host, broken, event)

    def _crops(self, images: ImageSet, index: int) -> UInt8[Tensor, "K 3 H W"]:
        """Decode one picture and cut what the device sees: the centre, and random crops."""
        pixels = self.backbone.pixels
        image = images.images[index]
        centre = data.evaluation_transform(
            _square(pixels.crop), resize=pixels.resize, interpolation=pixels.interpolation
        )
        cut = [centre(image)]
        if self.config.crops:
            # A generator of its own: threads share torch's global one.
            seed = int(picture_fingerprint(images, index)[:12], 16) ^ self.config.seed
            count, generator = self.config.crops, torch.Generator().manual_seed(seed)
            boxes = draw_crops(torch.tensor([image.shape[1:]]).expand(count, 2), generator)
            flip = torch.rand(count, generator=generator) < 0.5
            cut += resample(image.expand(count, -1, -1, -1), boxes, _square(pixels.crop), flip).unbind(0)
        return torch.stack(cut)

    def _tokens(self, crops: UInt8[Tensor, "B K 3 H W"]) -> Float[Tensor, "B V T C"]:
        if len(crops) == 0:
            return torch.empty(0, *self.tokens_shape)
        crops = crops.to(self.device, non_blocking=True)
        centre = crops[:, 0]
        views = [{"centre": centre, "mirror": centre.flip(-1)}[view] for view in self.config.views]
        seen = torch.stack([*views, *crops[:, 1:].unbind(1)], 1)
        rows = torch.cat([self._packed(part) for part in seen.flatten(0, 1).split(self.config.batch_size)])
        if tuple(rows.shape[1:]) != self.tokens_shape[1:]:
            raise ValueError(
                f"the backbone returns {rows.shape[1]} x {rows.shape[2]} numbers for these pictures and "
                f"{self.tokens_shape[1]} x {self.tokens_shape[2]} for others; stored tokens must be of one size"
            )
        return rows.unflatten(0, seen.shape[:2])

    def _packed(self, images: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B T C"]:
        features = self.features(images)
        tokens = features.map.flatten(2).mT if features.map.ndim == 4 else features.map
        prefix = [] if features.class_token is None else [features.class_token[:, None]]
        prefix += [] if features.registers is None else [features.registers]
        return torch.cat([*prefix, tokens], 1)

    @torch.no_grad()
    def features(self, images: UInt8[Tensor, "B 3 H W"]) -> Any:
        """Compute the features of a batch, in the precision of the configuration."""
        kind = torch.device(self.device).type
        fast = self.config.compute == "bf16" or (self.config.compute == "auto" and kind == "cuda")
        with torch.autocast(kind, torch.bfloat16, enabled=fast):
            return self.backbone.features(self.normalisation(images.to(self.device)))


def _begin_copy(values: Tensor) -> Tensor:
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)


def _append(shard: ShardWriter, batch: _Computed) -> None:
    if batch.event is not None:
        batch.event.synchronize()
    if batch.fingerprints:
        shard.append(batch.fingerprints, *batch.encoded)


@contextmanager
def full_disk_explained(folder: Path) -> Iterator[None]:
    """Say what is kept and what to do when the disk fills up.

    Raises:
        OSError: instead of the system's.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"the disk of {folder} is full; finished shards are kept. Make room, and the same command goes on, or "
            "choose another --features.folder, --features.precision int8 or fewer views",
        ) from error


def _square(crop: tuple[int, int]) -> int:
    if crop[0] != crop[1]:
        raise ValueError(f"tokens are computed of square crops, and the backbone wants {crop[0]} x {crop[1]} pixels")
    return crop[0]


def picture_fingerprint(images: ImageSet, index: int) -> str:
    """Return a hash of a picture: path, size and time of its file or files, else the pixels."""
    source: Any = images.images
    if isinstance(source, SelectedImages):
        source, index = source.source, int(source.indices[index])
    files = [source.paths[index]] if hasattr(source, "paths") else getattr(source, "files", {index: None})[index]
    if files is None:
        content: bytes = source[index].contiguous().numpy().tobytes()
    else:
        states = [(os.path.abspath(path), os.stat(path)) for path in files]
        content = " ".join(f"{path} {state.st_size} {state.st_mtime_ns}" for path, state in states).encode()
        # How a collage is stitched is in its description; a file alone is described by its path.
        content += source.describe(index).encode() if len(files) > 1 else b""
    return hashlib.sha256(content).hexdigest()[:24]
