"""Compute the tokens of a frozen backbone once: decode in processes, one forward pass a batch, shards on disk."""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from gspool.data.check import Broken, ImageCheck
from gspool.data.registry import data_root
from gspool.executor import Executor, Failure, run_tasks
from gspool.features.extractor import Extractor, Picture, picture_fingerprint
from gspool.features.store import Location, Precision, TokenLayout, TokenStore, store_key, weights_fingerprint
from gspool.features.tokens import TokenSet
from gspool.files import lock

if TYPE_CHECKING:
    from gspool.data import ImageSet
    from gspool.models import Backbone

View = Literal["centre", "mirror"]
GIGABYTE = 1 << 30
HASHED_AT_ONCE = 256


@dataclass
class FeatureConfig:
    """How the tokens of a frozen backbone are computed and kept.

    Args:
        views: the centre crop, its mirror image, or both.
        crops: further random crops of every picture.
        batch_size: images in one forward pass.
        precision: numbers on disk: bf16, fp16, fp32, or int8 with a scale for every token (half the size of bf16).
        compute: precision of the forward pass, bf16 or fp32; auto takes bf16 on a GPU, and on a CPU with instructions
            for it, unless fp32 is stored.
        budget: gigabytes that the tokens may take on disk.
        workers: processes that decode; 0 takes one a core, 1 none besides the one that computes.
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
    broken: Literal["stop", "skip"] = "stop",
) -> list[TokenSet]:
    """Return the tokens of image sets, computing those that no earlier call has kept.

    Tokens are kept by the backbone, its weights, blocks and preprocessing, the views and the picture (its path, size
    and time; of pictures in memory, their pixels): whatever changes is computed anew, and nothing else is.

    Args:
        backbone: used as it is, in evaluation mode.
        sets: their transforms are not used; pictures are cut as the backbone's weights want them.
        config: views, precision, budget, folder.
        name: of the backbone, part of the key.
        device: where to compute.
        executor: several processes or a Ray cluster, which must share the folder.
        advance: called with the number of pictures that are there already, and of every finished shard.
        broken: "stop" raises if pictures cannot be read, after all others are computed; "skip" leaves them out. Labels
            and class names stay as they are.

    Warns:
        UserWarning: if stored tokens are damaged (they are computed again), or pictures are left out, with their names.

    Raises:
        ValueError: if the tokens would exceed the budget or the free disk, another process computes them, the backbone
            has no tokens or maps of several sizes, or pictures cannot be read.
        OSError: if the disk is full; finished shards are kept.
    """
    config = config or FeatureConfig()
    advance = advance or (lambda pictures: None)
    backbone = backbone.eval()
    extractor = Extractor(backbone, sets, config, str(device))
    layout = extractor.layout()
    weights = weights_fingerprint(backbone.state_dict().items())
    deciding = {"name": name, "weights": weights, "pixels": backbone.pixels.as_dict(), **_deciding(config)}
    deciding["compute"] = extractor.compute
    if (blocks := getattr(backbone, "blocks", None)) is not None:
        # The same weights give other tokens where they are taken from other blocks.
        deciding["blocks"] = blocks
    key = store_key(deciding)
    root = data_root() / "features" if config.folder is None else Path(config.folder).expanduser()
    store = TokenStore(root / key, layout)
    if config.verify:
        for path in store.damaged():
            warnings.warn(f"stored tokens are damaged and computed again ({path.stem})", stacklevel=2)
            path.unlink()
    known = store.locations()
    fingerprints = [_fingerprints(images) for images in sets]
    missing = {
        fingerprint: Picture(fingerprint, part, index)
        for part, own in enumerate(fingerprints)
        for index, fingerprint in enumerate(own)
        if fingerprint not in known
    }
    check_budget(layout, len(missing), config.budget, store.folder)
    kept = sum(fingerprint in known for own in fingerprints for fingerprint in own)
    if kept:
        advance(kept)
    reasons: dict[str, str] = {}
    if missing:
        busy = f"another process is computing tokens in {store.folder}; wait until it has ended"
        with lock(store.folder / ".lock", busy, optional=True):
            # Another process may have computed some since they were listed.
            known = store.locations()
            wanted = [picture for fingerprint, picture in missing.items() if fingerprint not in known]
            if len(wanted) < len(missing):
                advance(len(missing) - len(wanted))
            reasons = _compute(extractor, store, wanted, executor, advance)
        known = store.locations()
    return [
        _token_set(images, store, own, known, reasons, broken) for images, own in zip(sets, fingerprints, strict=True)
    ]


def _token_set(
    images: ImageSet,
    store: TokenStore,
    fingerprints: Sequence[str],
    known: Mapping[str, Location],
    reasons: Mapping[str, str],
    policy: Literal["stop", "skip"],
) -> TokenSet:
    """Return the tokens of the pictures that could be read.

    Raises:
        ValueError: if some could not and the policy is to stop, or if none could.
    """
    bad = [(place, each) for place, each in enumerate(fingerprints) if each in reasons]
    if bad:
        sound = [place for place, each in enumerate(fingerprints) if each not in reasons]
        found = ImageCheck(images, len(images), tuple(Broken(place, reasons[each]) for place, each in bad))
        if policy == "stop" or not sound:
            raise found.error()
        warnings.warn(f"{images.name}/{images.split} goes on without broken images: {found}", stacklevel=3)
        images, fingerprints = images.subset(sound), [fingerprints[place] for place in sound]
    return TokenSet(images, store, [known[each] for each in fingerprints], fingerprints)


def check_budget(layout: TokenLayout, pictures: int, budget: float, folder: Path) -> None:
    """Refuse tokens of so many pictures that exceed the budget in gigabytes, or the free space of the disk."""
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


def _fingerprints(images: ImageSet) -> list[str]:
    """Return the fingerprints of all pictures; threads hash the pixels of those in memory side by side."""
    rows = torch.arange(len(images)).split(HASHED_AT_ONCE)
    with ThreadPoolExecutor() as pool:
        parts = pool.map(lambda part: [_fingerprint_if_there(images, row) for row in part.tolist()], rows)
        return [fingerprint for part in parts for fingerprint in part]


def _fingerprint_if_there(images: ImageSet, index: int) -> str:
    """Return the fingerprint of a picture; of a missing file that of its name, until decoding finds it missing."""
    try:
        return picture_fingerprint(images, index)
    except OSError:
        return hashlib.sha256(images.describe(index).encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _deciding(config: FeatureConfig) -> dict[str, Any]:
    """Return the settings that decide the numbers."""
    kept = ("views", "crops", "precision", *(["seed"] if config.crops else []))
    return {name: value for name, value in asdict(config).items() if name in kept}


def _compute(
    extractor: Extractor,
    store: TokenStore,
    pictures: Sequence[Picture],
    executor: Executor | None,
    advance: Callable[[int], None],
) -> dict[str, str]:
    """Compute and write tokens; return why pictures could not be read, by fingerprint."""
    reasons: dict[str, str] = {}
    if executor is None or (executor.workers == 1 and executor.ray is None):
        with closing(extractor.shards(store, pictures)) as shards:
            for shard in shards:
                reasons |= shard.broken
                advance(shard.pictures)
        return reasons
    size = min(store.layout.shard_pictures, max(1, -(-len(pictures) // max(executor.workers, 1))))
    tasks = [pictures[first : first + size] for first in range(0, len(pictures), size)]
    for task, result in run_tasks(partial(_shard_worker, extractor, store), tasks, executor):
        if isinstance(result, Failure):
            last = result.message.strip().splitlines()[-1]
            raise ValueError(f"tokens of {len(task)} pictures could not be computed: {last}; finished ones are kept")
        reasons |= result
        advance(len(task))
    return reasons


def _shard_worker(extractor: Extractor, store: TokenStore) -> Callable[[Sequence[Picture]], dict[str, str]]:
    extractor.start()

    def work(task: Sequence[Picture]) -> dict[str, str]:
        broken: dict[str, str] = {}
        for shard in extractor.shards(store, task):
            broken |= shard.broken
        return broken

    return work
