"""The image sets of a run: listed, checked before training begins with everything else, cached, with transforms."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from gspool import data
from gspool.data import ImageSet
from gspool.data.check import in_memory, some
from gspool.data.decode import stored_size
from gspool.data.image_set import Split
from gspool.data.image_source import FileImages, selected
from gspool.data.problems import DataCheck, find_problems
from gspool.data.registry import option_names
from gspool.evaluation.checked_input import as_ranks
from gspool.models import Pixels
from gspool.models.create import TIMM, begins_at_random, check_backbone_options, is_published
from gspool.models.embedder import Embedder
from gspool.models.freezing import evaluating
from gspool.models.pretrained import check_savable
from gspool.pooling.embedding import check_head_options
from gspool.terminal.status import WrongArgumentsError, checking_arguments
from gspool.training.config import DataConfig, TrainConfig
from gspool.training.embed import can_be_searched, search_rows
from gspool.training.gpu_data import TensorSet, load_tensors
from gspool.training.run_folder import process_rank

if TYPE_CHECKING:
    from gspool.losses import MetricLoss


def image_set(
    config: DataConfig, split: Split, pixels: Pixels, *, training: bool = False, progress: bool = False
) -> ImageSet:
    """Return one split of the configured data, ready for a loader; augmented for training."""
    images = data.create(config.name, config.root, split, **config.options)
    return prepared(images, config, pixels, training=training, progress=progress)


def needed_splits(config: TrainConfig) -> list[Split]:
    """Return the splits that a training needs: train, test, and validation where that is watched."""
    return ["train", "test", "validation"] if config.trainer.monitor_split == "validation" else ["train", "test"]


def prepared(
    images: ImageSet,
    config: DataConfig,
    pixels: Pixels,
    *,
    training: bool = False,
    progress: bool = False,
    check: bool = True,
) -> ImageSet:
    """Cache a listed split, check its images and set its transform, as configured.

    Images in memory need no check, nor does a split without a cache that was checked before (``check`` False).

    Raises:
        ValueError: if a transform does not fit, or an image is broken and ``config.check`` is "stop".

    Warns:
        UserWarning: if broken images are left out, with their names and the classes that are lost.
    """
    transform = _transform(config, pixels, training)
    if config.cache:
        images = data.cached(images, **_resizing(config, pixels, training))
    if config.check != "none" and (check or config.cache) and not in_memory(images):
        found = data.check_images(images, config.check, progress=progress)
        if found.broken and process_rank() == 0:
            warnings.warn(f"{images.name}/{images.split} goes on without broken images: {found}", stacklevel=2)
        images = found.images
    return images.with_transform(transform)


def _resizing(config: DataConfig, pixels: Pixels, training: bool) -> dict[str, Any]:
    """Return the first step of the transforms, which a cache stores: as training asks for it, else as the backbone."""
    side = config.transform_options.get("resize", pixels.resize) if training else pixels.resize
    return {
        "shorter_side": side if config.transform == "crop" else None,
        "interpolation": "bilinear" if training else pixels.interpolation,
    }


def prepare_splits(
    config: TrainConfig, listed: Mapping[Split, ImageSet], pixels: Pixels, progress: bool
) -> dict[Split, ImageSet]:
    """Prepare the splits that `check_run` has listed; what is wrong with any of them is told at once."""
    problems, images = Problems(), {}
    for split, each in listed.items():
        training = split == "train"
        with problems.gathered():
            images[split] = prepared(each, config.data, pixels, training=training, progress=progress, check=False)
    problems.refuse()
    return images


def check_splits(config: TrainConfig, images: Mapping[Split, Any]) -> None:
    """Check that a run has the splits that it needs, and that they can be measured.

    Raises:
        ValueError: if one is missing, has other classes than a classifier learns, or leaves a search nothing to find or
            nothing to mistake.
    """
    missing = [split for split in needed_splits(config) if split not in images]
    if missing:
        raise ValueError(f"the run needs the split {', '.join(missing)}; got {', '.join(images)}")
    names = images["train"].class_names
    for split, each in images.items():
        # Shards know classes by number, and a part of them may lack the last ones.
        if config.loss.name == "cross_entropy" and each.class_names != names[: len(each.class_names)]:
            raise ValueError(
                f"loss cross_entropy predicts the classes of train, and {split} has others; use data whose splits have "
                "the same classes (imagenet, cifar100, a folder with --data.options.zero_shot false), or another loss"
            )
    for split in needed_splits(config)[1:] if config.loss.name != "cross_entropy" else ():
        remedy = "; add images, or choose other data.options"
        if split == "validation":
            remedy += ", or watch no validation (--trainer.monitor_split none)"
        if not can_be_searched(images[split]):
            raise ValueError(
                f"{split} has no class of two images (where it has roles, of a query and an image of the gallery), so "
                f"there is nothing to find and nothing to measure{remedy}"
            )
        if len(images[split].labels[search_rows(images[split])[1]].unique()) < 2:
            raise ValueError(f"{split} has a single class to search, so every image that is found is right{remedy}")


def check_sizes(images: Mapping[Split, Any]) -> None:
    """Check that files that are used as they are have one size a split: they are stacked into batches.

    Raises:
        ValueError: if they have several.
    """
    for split, each in images.items():
        source, rows = selected(each.images) if isinstance(each, ImageSet) else (None, torch.empty(0))
        if not isinstance(source, FileImages) or not isinstance(each.transform, data.ShiftAndFlip | None):
            continue
        side, first = getattr(source, "shorter_side", None), dict[tuple[int, int], str]()
        for index, row in enumerate(rows.tolist()):
            first.setdefault(stored_size(source.paths[row], side), each.describe(index))
        if len(first) > 1:
            found = [f"{name} of {width} x {height}" for (width, height), name in first.items()]
            raise ValueError(
                f"images of one batch must have one size, and {split} has {len(first)} ({some(found, 2)}); choose the "
                "transform 'crop' (data.transform), which brings all of them to the backbone's size"
            )


def describe_data(config: DataConfig, images: Mapping[Split, ImageSet]) -> str:
    """Return the pictures and classes of every split, and the classes that are left out, as lines."""
    parts = [f"{split} {len(each):,} of {each.num_classes:,} classes" for split, each in images.items()]
    lines = [f"pictures  {config.name}{f' {config.root}' if config.root else ''}: {', '.join(parts)}"]
    dropped = _dropped_classes(config)
    if dropped:
        lines.append(f"dropped   {len(dropped):,} classes with fewer than two pictures: {', '.join(dropped)}")
    return "\n".join(lines)


def _dropped_classes(config: DataConfig) -> list[str]:
    if config.options.get("small_classes") != "drop":
        return []
    with suppress(ValueError):  # a class without any image cannot be kept
        kept = data.create(config.name, config.root, "all", small_classes="keep").class_names
        return sorted({*kept} - {*data.create(config.name, config.root, "all", small_classes="drop").class_names})
    return []


def on_device(
    images: ImageSet, config: DataConfig, pixels: Pixels, device: Any, *, training: bool = False, progress: bool = False
) -> TensorSet:
    """Decode a prepared split into memory of the device, for ``data.resident``."""
    return load_tensors(
        images,
        device,
        **_resizing(config, pixels, training),
        longest=max(384, 3 * pixels.resize // 2),
        workers=max(config.workers, 1),
        progress=progress,
        transform=config.transform if training or config.transform == "crop" else "none",
        size=pixels.size if config.transform == "crop" else None,
        options=config.transform_options,
    )


def placed_on(
    device: torch.device, images: Mapping[Split, Any], config: DataConfig, model: Any, progress: bool
) -> dict[Split, Any]:
    """Move sets of tensors to the device, and with ``data.resident`` those of images."""
    placed = {}
    for split, each in images.items():
        if isinstance(each, TensorSet):
            each = each.to(device)
        elif config.resident:
            each = on_device(each, config, model.pixels, device, training=split == "train", progress=progress)
        placed[split] = each
    return placed


def fetch_data(config: DataConfig) -> None:
    """Download a published data set from its official address, unless it is there.

    Raises:
        WrongArgumentsError: if it is not a published data set.
        FileNotFoundError: if it has no address; the message says where to get it.
        ConnectionError: if its address cannot be reached.
    """
    if "download" not in option_names(config.name):
        known = [name for name in data.list() if "download" in option_names(name)]
        raise WrongArgumentsError(
            f"--download works for {', '.join(known)}, and {config.name} is none of them; leave it out"
        )
    data.create(config.name, config.root, "train", **{**config.options, "download": True})


def _transform(config: DataConfig, pixels: Pixels, training: bool) -> Callable[[Any], Any] | None:
    makers: dict[str, Callable[..., Any]] = {"crop": data.train_transform, "shift": data.ShiftAndFlip}
    if config.transform == "none":
        if config.transform_options:
            raise ValueError(f"the transform 'none' has no options, got {', '.join(config.transform_options)}")
        return None
    maker = makers[config.transform]
    known = [*inspect.signature(maker).parameters]
    unknown = [name for name in config.transform_options if name not in known]
    if unknown:
        raise ValueError(
            f"the transform {config.transform!r} has no option {', '.join(unknown)}; its options are {', '.join(known)}"
        )
    if config.transform == "shift":
        return maker(**config.transform_options) if training else None
    if not isinstance(pixels.size, int):
        raise ValueError(f"the transform 'crop' makes square images, but the backbone wants {pixels.size}")
    # Also with a cache, which not all images have: those that it holds have this size, and stay as they are.
    resize, interpolation = _resizing(config, pixels, training).values()
    if training:
        return maker(**{"size": pixels.size, **config.transform_options, "resize": resize})
    return data.evaluation_transform(pixels.size, resize=resize, interpolation=interpolation)


def check_beginning(config: TrainConfig) -> None:
    """Check that a backbone is not trained from random weights by accident.

    Raises:
        ValueError: if it would have random weights, though it is published with others or the configuration asks for
            others, and nothing says that random ones are intended; or if both were asked for.
    """
    model = config.model
    if config.start_from is not None:
        return
    if not begins_at_random(model.backbone, model.backbone_options):
        if config.from_scratch:
            raise ValueError(
                "from_scratch asks for random weights and model.backbone_options for others; leave one of them out"
            )
        return
    needed = is_published(model.backbone) if config.from_scratch is None else not config.from_scratch
    # Whoever writes pretrained: false has chosen.
    if not needed or "pretrained" in model.backbone_options:
        return
    ways = ["--model.backbone_options.weights FILE (docs/models.md lists where to get files)"]
    if model.backbone.startswith(TIMM):
        ways.insert(0, "--model.backbone_options.pretrained true, which downloads them")
    raise ValueError(
        f"{model.backbone} would begin with random weights, and this training needs pretrained ones: give "
        f"{', or '.join(ways)}; or --from_scratch if random weights are intended"
    )


def check_monitor(config: TrainConfig) -> None:
    """Check that the metric that is watched is one that is measured."""
    known = ["p@1", "p@r", "map@r", *(f"r@{k}" for k in as_ranks(config.output.ks))]
    if config.loss.name == "cross_entropy":
        known = ["accuracy"]
    if config.trainer.monitor not in known:
        raise ValueError(f"trainer.monitor must be one of {', '.join(known)}, got {config.trainer.monitor!r}")


def check_model_options(config: TrainConfig) -> None:
    """Check the options of the pooling layer and the backbone."""
    check_head_options(config.model.pooling, config.model.pooling_options)
    check_backbone_options(config.model.backbone, config.model.backbone_options)


class Problems:
    """Problems of a run, gathered so that all of them are told at once.

    Example:
        >>> problems = Problems()
        >>> with problems.gathered():
        ...     int("a")
        >>> problems.refuse()
        Traceback (most recent call last):
        ValueError: invalid literal for int() with base 10: 'a'
    """

    def __init__(self) -> None:
        self.found: list[Exception] = []

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Keep a ValueError or a missing file for later."""
        try:
            yield
        except (ValueError, FileNotFoundError) as error:
            if str(error) not in map(str, self.found):
                self.found.append(error)

    def refuse(self, remedy: str = "") -> None:
        """Raise what was found: a single problem as it is, several as one list, with a remedy for all of them."""
        if not self.found:
            return
        if len(self.found) == 1 and not remedy:
            raise self.found[0]
        wrong = any(isinstance(error, WrongArgumentsError) for error in self.found)
        listed = "\n".join(f"{number}. {error}" for number, error in enumerate(self.found, 1))
        heading = f"{len(self.found)} problems:\n" if len(self.found) > 1 else ""
        message = f"{heading}{listed if heading else self.found[0]}{remedy}"
        raise (WrongArgumentsError if wrong else ValueError)(message) from self.found[0]


def check_run(
    configs: Sequence[TrainConfig], command: str = "", *, begun: bool = False, progress: bool = False
) -> dict[Split, ImageSet]:
    """Check the settings of the models of a run and all of its data before any work; return the listed splits.

    Images are decoded here unless they are cached: the cache is filled when they are checked.

    Args:
        configs: the settings of every model; their data is the same.
        command: what the user has written, to be repeated with what leaves broken images and small classes out.
        begun: whether the run has begun already, so that its weights are settled.
        progress: show progress bars.
    """
    problems, data = Problems(), configs[0].data
    for config in configs:
        for check in (TrainConfig.check, check_model_options, check_monitor, *(() if begun else (check_beginning,))):
            with problems.gathered(), checking_arguments():
                check(config)
    found = DataCheck({}, ())
    with problems.gathered():
        found = find_problems(
            data.name,
            data.root,
            needed_splits(configs[0]),
            options=data.options,
            check="none" if data.cache else data.check,
            progress=progress,
        )
    problems.found += [ValueError(one.text) for one in found.stops]
    remedy = found.remedy() if found.stops else None
    problems.refuse(f"\nGo on without these classes and images: {command or '...'} {remedy}" if remedy else "")
    for one in found.problems:
        if not one.stops and process_rank() == 0:
            warnings.warn(one.text, stacklevel=2)
    return found.sets


@torch.no_grad()
def check_fit(model: Any, loss: MetricLoss, images: ImageSet | TensorSet, pooling: str) -> None:
    """Embed one image, so that an error shows before training and not after the first epoch.

    Raises:
        ValueError: if the model could not be saved, the image does not fit it, or the loss needs attributes that it
            does not have.
    """
    if isinstance(model, Embedder):
        check_savable(model)
    first = torch.zeros(1, dtype=torch.int64)
    image = images.evaluation_images(first) if isinstance(images, TensorSet) else images[0][0][None]
    with evaluating(model):
        embedded = model.embed(image.to(next(model.parameters()).device))
    if loss.zsr is not None and embedded.attributes is None:
        raise ValueError(
            f"loss.zsr = {loss.zsr_weight} regularises attributes, which the pooling layer {pooling!r} does not have; "
            "use gsp, gmp+gsp or gemean+gsp, or set loss.zsr to 0"
        )
