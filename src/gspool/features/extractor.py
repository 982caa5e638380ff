"""Pictures through a frozen backbone: decoding, computing and writing side by side."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from gspool import data
from gspool.data.batches import ShieldedLoader, loading_processes
from gspool.data.cache import CachedImages
from gspool.data.crops import draw_crops, resample
from gspool.data.decode import BrokenImageError
from gspool.data.image_source import SelectedImages
from gspool.features.store import TokenLayout, TokenStore, encoded
from gspool.models.device import computes_bf16, laid_out_for
from gspool.models.pixels import PixelNormalisation

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from torch import Tensor

    from gspool.data import ImageSet
    from gspool.features.extract import FeatureConfig
    from gspool.models import Backbone, Pixels

# Shards that are hashed and written at once: one thread is slower than a GPU computes.
WRITERS = 4
# A slow machine ends shards early: an interruption costs it no more, and the progress bar moves.
SHARD_SECONDS = 20.0


class Picture(NamedTuple):
    """A picture to compute: its fingerprint, and its set and place in the list of sets."""

    fingerprint: str
    part: int
    row: int


class Shard(NamedTuple):
    """What a finished shard covers: how many pictures, and why some of them could not be read."""

    pictures: int
    broken: dict[str, str]


class Decoded(NamedTuple):
    """A batch of pictures: the crops of those that can be read, and why the others cannot."""

    fingerprints: list[str]
    crops: UInt8[Tensor, "B K 3 H W"]
    broken: dict[str, str]


class PictureBatches(Dataset[Decoded]):
    """Decode batches of pictures and cut what the device sees: the centre, and random crops."""

    def __init__(self, sets: Sequence[ImageSet], pixels: Pixels, config: FeatureConfig) -> None:
        self.sets, self.config, self.size = sets, config, _square(pixels.crop)
        self.centre = data.evaluation_transform(self.size, resize=pixels.resize, interpolation=pixels.interpolation)

    def __getitem__(self, batch: Sequence[Picture]) -> Decoded:
        crops: dict[str, Tensor] = {}
        broken: dict[str, str] = {}
        for picture in batch:
            try:
                crops[picture.fingerprint] = self._crops(picture)
            except BrokenImageError as problem:
                broken[picture.fingerprint] = str(problem)
        stacked = torch.stack([*crops.values()]) if crops else torch.empty(0, dtype=torch.uint8)
        return Decoded([*crops], stacked, broken)

    def _crops(self, picture: Picture) -> UInt8[Tensor, "K 3 H W"]:
        image = self.sets[picture.part].images[picture.row]
        centre: Tensor = self.centre(image)[None]
        count = self.config.crops
        if not count:
            return centre
        # A generator of its own: crops do not depend on the process that draws them.
        generator = torch.Generator().manual_seed(int(picture.fingerprint[:12], 16) ^ self.config.seed)
        boxes = draw_crops(torch.tensor([image.shape[1:]]).expand(count, 2), generator)
        flip = torch.rand(count, generator=generator) < 0.5
        return torch.cat([centre, resample(image.expand(count, -1, -1, -1), boxes, self.size, flip)])


class Computed(NamedTuple):
    """A batch on its way to the host: wait for ``event`` before reading the tokens."""

    fingerprints: list[str]
    encoded: tuple[Tensor, Tensor | None]
    broken: dict[str, str]
    event: Any


class CopyStreams:
    """Copies to and from a GPU beside what it computes; each direction has a stream of its own."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.to_device, self.to_host = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def upload(self, values: Tensor) -> Tensor:
        """Copy pinned values to the device; what is computed from now on waits for them."""
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.to_device):
            copy = values.to(self.device, non_blocking=True)
        computing.wait_stream(self.to_device)
        copy.record_stream(computing)
        return copy

    def download(self, values: Tensor) -> Tensor:
        """Begin to copy values to pinned memory, once they are computed."""
        self.to_host.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.to_host):
            copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
        values.record_stream(self.to_host)
        return copy


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
        writing: deque[Future[Shard]] = deque()
        shard: list[Computed] = []
        left, begun = len(pictures), time.monotonic()
        streams = CopyStreams(self.device) if self.device.startswith("cuda") else None
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="write") as disk, full_disk_explained(store.folder):
            for batch in self.decoded(pictures):
                shard.append(self._sent(batch, streams))
                size = sum(len(part.fingerprints) + len(part.broken) for part in shard)
                late = time.monotonic() - begun > SHARD_SECONDS
                if late or size >= min(store.layout.shard_pictures, left):
                    writing.append(disk.submit(_write, store, shard))
                    left, shard, begun = left - size, [], time.monotonic()
                while writing and (len(writing) > WRITERS or writing[0].done()):
                    yield writing.popleft().result()
            for future in writing:
                yield future.result()

    def decoded(self, pictures: Sequence[Picture]) -> DataLoader[Any]:
        """Return a loader of batches of pictures.

        Processes decode, not threads: the forward pass would wait for their Python at every one of its operations.
        """
        size = self.config.batch_size
        batches = [pictures[first : first + size] for first in range(0, len(pictures), size)]
        processes = min(loading_processes(self.config.workers or sys.maxsize), len(batches))
        return ShieldedLoader(
            PictureBatches(self.sets, self.backbone.pixels, self.config),
            batch_size=None,
            sampler=batches,
            num_workers=processes if processes > 1 else 0,
            pin_memory=self.device.startswith("cuda"),
            # torch draws a seed for its workers; from a generator of our own, it leaves the global one alone.
            generator=torch.Generator(),
        )

    def _sent(self, batch: Decoded, streams: CopyStreams | None) -> Computed:
        """Compute the tokens of a batch, and begin to copy them to the host."""
        crops = batch.crops if streams is None else streams.upload(batch.crops)
        numbers, scale = encoded(self._tokens(crops), self.config.precision)
        if streams is None or not numbers.is_cuda:
            return Computed(batch.fingerprints, (numbers, scale), batch.broken, None)
        on_host = streams.download(numbers), None if scale is None else streams.download(scale)
        # Whoever waits for a blocking event sleeps, and does not take a core from the decoding.
        arrived = streams.to_host.record_event(torch.cuda.Event(blocking=True))
        return Computed(batch.fingerprints, on_host, batch.broken, arrived)

    def _tokens(self, crops: UInt8[Tensor, "B K 3 H W"]) -> Float[Tensor, "B V T C"]:
        if len(crops) == 0:
            return torch.empty(0, *self.tokens_shape)
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

    @property
    def compute(self) -> str:
        """The precision of the forward pass: that of the configuration, or the one that suits device and store."""
        if self.config.compute != "auto":
            return self.config.compute
        return "bf16" if computes_bf16(self.device) and self.config.precision != "fp32" else "fp32"

    @torch.no_grad()
    def features(self, images: UInt8[Tensor, "B 3 H W"]) -> Any:
        """Compute the features of a batch."""
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.compute == "bf16"):
            return self.backbone.features(laid_out_for(self.backbone, self.normalisation(images.to(self.device))))


def _write(store: TokenStore, batches: Sequence[Computed]) -> Shard:
    """Write the tokens of some batches as one shard, once they have reached the host."""
    for batch in batches:
        if batch.event is not None:
            batch.event.synchronize()
    fingerprints = [each for batch in batches for each in batch.fingerprints]
    broken = {each: reason for batch in batches for each, reason in batch.broken.items()}
    if fingerprints:
        store.write_encoded(fingerprints, [batch.encoded for batch in batches if batch.fingerprints])
    return Shard(len(fingerprints) + len(broken), broken)


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
    """Return a hash of a picture: path, size and time of its file or files and the resize of a cache, or the pixels."""
    source: Any = images.images
    if isinstance(source, SelectedImages):
        source, index = source.source, int(source.indices[index])
    files = [source.paths[index]] if hasattr(source, "paths") else getattr(source, "files", {index: None})[index]
    if files is None:
        content: Any = source[index].contiguous().numpy()
    else:
        states = [(os.path.abspath(path), os.stat(path)) for path in files]
        content = " ".join(f"{path} {state.st_size} {state.st_mtime_ns}" for path, state in states).encode()
        # How a collage is stitched is in its description; a file alone is described by its path.
        content += source.describe(index).encode() if len(files) > 1 else b""
        if isinstance(source, CachedImages) and source.shorter_side is not None:
            content += f" {source.shorter_side} {source.interpolation}".encode()
    return hashlib.sha256(content).hexdigest()[:24]
