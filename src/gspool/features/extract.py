"""Compute the tokens of a frozen backbone once: decode in threads, one forward pass a batch, shards on disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from gspool import data
from gspool.data.crops import draw_crops, resample
from gspool.data.image_source import FileImages, SelectedImages
from gspool.data.location import data_root
from gspool.executor import Executor, Failure, run_tasks
from gspool.features.store import Precision, TokenLayout, TokenStore, store_key, weights_fingerprint
from gspool.features.tokens import TokenSet
from gspool.files import lock
from gspool.models.normalisation import PixelNormalisation

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from torch import Tensor

    from gspool.data import ImageSet
    from gspool.models import Backbone

View = Literal["centre", "mirror"]
GIGABYTE = 1 << 30


@dataclass
class FeatureConfig:
    """How the tokens of a frozen backbone are computed and kept.

    Args:
        views: the centre crop, its mirror image, or both.
        crops: further random crops of every picture.
        batch_size: images in one forward pass.
        precision: numbers on disk: bf16, fp16, fp32, or int8 with a scale for every token (half the size of bf16).
        compute: precision of the forward pass, bf16 or fp32; bf16 is slow on most CPUs.
        budget: gigabytes that the tokens may take on disk.
        workers: threads that decode; 0 takes one a core.
        folder: where tokens are kept; ``features`` beside the data sets unless given.
        seed: of the random crops.
        verify: compare tokens of earlier calls with their checksums, seconds for a few gigabytes.
    """

    views: list[View] = field(default_factory=lambda: ["centre", "mirror"])
    crops: int = 0
    batch_size: int = 64
    precision: Precision = "bf16"
    compute: Literal["auto", "bf16", "fp32"] = "auto"
    budget: float = 100.0
    workers: int = 0
    folder: str | None = None
    seed: int = 0
    verify: bool = True

    def __post_init__(self) -> None:
        if not self.views or len({*self.views}) != len(self.views) or {*self.views} - {"centre", "mirror"}:
            raise ValueError(f"features.views names centre, mirror or both, each once, got {self.views}")
        for name, least in (("crops", 0), ("batch_size", 1), ("workers", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"features.{name} must be at least {least}, got {getattr(self, name)}")
        if not self.budget > 0:
            raise ValueError(f"features.budget is in gigabytes and must be positive, got {self.budget}")


def extract_tokens(
    backbone: Backbone,
    sets: Sequence[ImageSet],
    config: FeatureConfig | None = None,
    *,
    name: str,
    device: torch.device | str = "cpu",
    executor: Executor | None = None,
    advance: Callable[[int], None] | None = None,
) -> list[TokenSet]:
    """Return the tokens of image sets, computing those that no earlier call has kept.

    Tokens are kept by the backbone, its weights, its preprocessing, the views and the picture (its path, size and time;
    of pictures in memory, their pixels): whatever changes is computed anew, and nothing else is.

    Args:
        backbone: used as it is, in evaluation mode.
        sets: their transforms are not used; pictures are cut as the backbone's weights want them.
        config: views, precision, budget, folder.
        name: of the backbone, part of the key.
        device: where to compute.
        executor: several processes or a Ray cluster, which must share the folder.
        advance: called with the number of pictures of every finished shard.

    Warns:
        UserWarning: if stored tokens are damaged; they are computed again.

    Raises:
        ValueError: if the tokens would exceed the budget or the free disk, another process computes them, maps of the
            pictures differ in size, or a picture cannot be read.
        OSError: if the disk is full.
    """
    config = config or FeatureConfig()
    backbone = backbone.eval()
    extractor = _Extractor(backbone, config, str(device))
    layout = extractor.layout()
    weights = weights_fingerprint(backbone.state_dict().items())
    description = {"name": name, "weights": weights, "pixels": backbone.pixels.as_dict(), **_deciding(config)}
    # The same weights give other tokens if other blocks are read.
    blocks = getattr(backbone, "blocks", None)
    key = store_key(description if blocks is None else {**description, "blocks": blocks})
    root = data_root() / "features" if config.folder is None else Path(config.folder).expanduser()
    store = TokenStore(root / key, layout)
    fingerprints = [[picture_fingerprint(images, index) for index in range(len(images))] for images in sets]
    if config.verify:
        for path in store.damaged():
            warnings.warn(f"stored tokens are damaged and computed again ({path.stem})", stacklevel=2)
            path.unlink()
    known = store.locations()
    missing: dict[str, tuple[int, int]] = {}
    for which, prints in enumerate(fingerprints):
        for index, print_ in enumerate(prints):
            if print_ not in known:
                missing[print_] = (which, index)
    check_budget(layout, len(missing), config.budget, store.folder)
    if missing:
        busy = f"another process is computing tokens in {store.folder}; wait until it has ended"
        with lock(store.folder / ".lock", busy, optional=True):
            _compute(extractor, store, sets, missing, executor, advance)
        known = store.locations()
    return [
        TokenSet(images, store, [known[each] for each in prints])
        for images, prints in zip(sets, fingerprints, strict=True)
    ]


def check_budget(layout: TokenLayout, pictures: int, budget: float, folder: Path) -> int:
    """Return the bytes that the tokens of so many pictures take.

    Raises:
        ValueError: if they exceed the budget in gigabytes, or the free space of the disk.
    """
    needed = layout.picture_bytes * pictures
    size = f"{needed / GIGABYTE:.1f} GB of tokens for {pictures:,} pictures x {layout.views} views"
    fewer = "fewer by --features.views [centre], --features.precision int8, a smaller image size or fewer pictures"
    if needed > budget * GIGABYTE:
        raise ValueError(f"{size} exceed --features.budget {budget:g}; raise it, or take {fewer}")
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"{size} do not fit on the disk of {folder}, which has {free / GIGABYTE:.1f} GB free; choose another "
            f"--features.folder, or take {fewer}"
        )
    return needed


def picture_fingerprint(images: ImageSet, index: int) -> str:
    """Return a hash of a picture: path, size and time of a file, else the pixels."""
    source: Any = images.images
    if isinstance(source, SelectedImages):
        source, index = source.source, int(source.indices[index])
    if isinstance(source, FileImages) or hasattr(source, "paths"):
        path = source.paths[index]
        status = os.stat(path)
        content: bytes = f"{os.path.abspath(path)} {status.st_size} {status.st_mtime_ns}".encode()
    else:
        content = source[index].contiguous().numpy().tobytes()
    return hashlib.sha256(content).hexdigest()[:24]


def _deciding(config: FeatureConfig) -> dict[str, Any]:
    """Return the settings that decide the numbers."""
    kept = ("views", "crops", "precision", "compute", *(["seed"] if config.crops else []))
    return {name: value for name, value in asdict(config).items() if name in kept}


def _compute(
    extractor: _Extractor,
    store: TokenStore,
    sets: Sequence[ImageSet],
    missing: dict[str, tuple[int, int]],
    executor: Executor | None,
    advance: Callable[[int], None] | None,
) -> None:
    prints = list(missing)
    size = store.layout.shard_pictures
    if executor is not None and executor.workers > 1:
        size = max(1, min(size, -(-len(prints) // executor.workers)))
    shards = [prints[first : first + size] for first in range(0, len(prints), size)]
    tasks = [[(print_, *missing[print_]) for print_ in shard] for shard in shards]
    make_worker = partial(_shard_worker, extractor, store, tuple(sets))
    for task, result in run_tasks(make_worker, tasks, executor):
        if isinstance(result, Failure):
            raise ValueError(f"tokens of {len(task)} pictures could not be computed: {result.message}")
        if advance is not None:
            advance(len(task))


def _shard_worker(
    extractor: _Extractor, store: TokenStore, sets: tuple[ImageSet, ...]
) -> Callable[[list[tuple[str, int, int]]], None]:
    extractor.start()

    def work(task: list[tuple[str, int, int]]) -> None:
        rows = torch.cat(list(extractor.rows((sets[which], index) for _, which, index in task)))
        store.write([print_ for print_, _, _ in task], rows)

    return work


class _Extractor:
    """A backbone on its device, and the pictures that run through it."""

    def __init__(self, backbone: Backbone, config: FeatureConfig, device: str) -> None:
        self.backbone, self.config, self.device = backbone, config, device
        self.normalisation = PixelNormalisation(backbone.pixels)

    def start(self) -> None:
        self.backbone.to(self.device).eval()
        self.normalisation.to(self.device)

    def layout(self) -> TokenLayout:
        """Run one blank picture, to learn how many tokens there are."""
        self.start()
        blank = torch.zeros(1, 3, *self.backbone.pixels.crop, dtype=torch.uint8)
        features = self._features(blank)
        grid = (features.map.shape[2], features.map.shape[3]) if features.map.ndim == 4 else None
        registers = 0 if features.registers is None else features.registers.shape[1]
        class_token = features.class_token is not None
        return TokenLayout(
            views=len(self.config.views) + self.config.crops,
            prefix=registers + class_token,
            class_token=class_token,
            tokens=features.map.shape[2] * features.map.shape[3] if grid else features.map.shape[1],
            channels=self.backbone.channels,
            grid=grid,
            precision=self.config.precision,
        )

    def rows(self, pictures: Iterator[tuple[ImageSet, int]]) -> Iterator[Float[Tensor, "B V T C"]]:
        """Yield the tokens of pictures, batch by batch, in their order."""
        batch: list[Tensor] = []
        waiting: deque[Tensor] = deque()
        for crops in self._decoded(pictures):
            batch.append(crops)
            if len(batch) == self.config.batch_size:
                waiting.append(self._tokens(torch.stack(batch)))
                batch = []
            # One batch behind: the copy of the last one runs while the device computes the next.
            if len(waiting) > 1:
                yield self._on_host(waiting.popleft())
        if batch:
            waiting.append(self._tokens(torch.stack(batch)))
        while waiting:
            yield self._on_host(waiting.popleft())

    def _decoded(self, pictures: Iterator[tuple[ImageSet, int]]) -> Iterator[UInt8[Tensor, "K 3 H W"]]:
        workers = self.config.workers or len(os.sched_getaffinity(0))
        ahead = 2 * self.config.batch_size + workers
        waiting: deque[Future[Tensor]] = deque()
        with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
            try:
                for images, index in pictures:
                    waiting.append(pool.submit(self._crops, images, index))
                    if len(waiting) > ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

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
        if self.device.startswith("cuda"):
            crops = crops.pin_memory().to(self.device, non_blocking=True)
        centre = crops[:, 0]
        views = [{"centre": centre, "mirror": centre.flip(-1)}[view] for view in self.config.views]
        seen = torch.stack([*views, *crops[:, 1:].unbind(1)], 1)
        rows = [self._packed(part) for part in seen.flatten(0, 1).split(self.config.batch_size)]
        return torch.cat(rows).unflatten(0, seen.shape[:2])

    def _packed(self, images: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B T C"]:
        features = self._features(images)
        tokens = features.map.flatten(2).mT if features.map.ndim == 4 else features.map
        prefix = [] if features.class_token is None else [features.class_token[:, None]]
        prefix += [] if features.registers is None else [features.registers]
        return torch.cat([*prefix, tokens], 1)

    @torch.no_grad()
    def _features(self, images: UInt8[Tensor, "B 3 H W"]) -> Any:
        kind = torch.device(self.device).type
        fast = self.config.compute == "bf16" or (self.config.compute == "auto" and kind == "cuda")
        with torch.autocast(kind, torch.bfloat16, enabled=fast):
            return self.backbone.features(self.normalisation(images.to(self.device)))

    def _on_host(self, tokens: Tensor) -> Tensor:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.config.precision, torch.float32)
        return tokens.to(dtype).cpu()


def _square(crop: tuple[int, int]) -> int:
    if crop[0] != crop[1]:
        raise ValueError(f"tokens are computed of square crops, and the backbone wants {crop[0]} x {crop[1]} pixels")
    return crop[0]
