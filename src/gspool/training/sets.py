"""The image sets of a run: listed, cached, checked, and with their transforms."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gspool import data
from gspool.data import ImageSet
from gspool.data.check import in_memory
from gspool.data.image_set import Split
from gspool.data.registry import option_names
from gspool.models import Pixels
from gspool.terminal.status import WrongArgumentsError
from gspool.training.config import DataConfig, TrainConfig
from gspool.training.gpu_data import TensorSet, load_tensors
from gspool.training.run_folder import process_rank


def image_set(
    config: DataConfig, split: Split, pixels: Pixels, *, training: bool = False, progress: bool = False
) -> ImageSet:
    """Return one split of the configured data, ready for a loader; augmented for training."""
    return prepared(list_images(config, split), config, pixels, training=training, progress=progress)


def needed_splits(config: TrainConfig) -> list[Split]:
    """Return the splits that a training needs: train, test, and validation where that is watched."""
    return ["train", "test", "validation"] if config.trainer.monitor_split == "validation" else ["train", "test"]


def list_images(config: DataConfig, split: Split) -> ImageSet:
    """List one split of the configured data; this needs no model.

    Raises:
        ValueError, FileNotFoundError: if the data or an option does not fit, or the data is not there.
    """
    return data.create(config.name, config.root, split, **config.options)


def checked(images: ImageSet, config: DataConfig, *, progress: bool = False) -> ImageSet:
    """Decode every image of a listed split once, as ``check`` says; images in memory need none.

    Raises:
        ValueError: if an image is broken and ``check`` is "stop".

    Warns:
        UserWarning: if broken images are left out, with their names and the classes that are lost.
    """
    if config.check == "none" or in_memory(images):
        return images
    found = data.check_images(images, config.check, progress=progress)
    if found.broken and process_rank() == 0:
        lost = [name for name in images.class_names if name not in found.images.class_names]
        classes = f", and without the classes {', '.join(lost)}" if lost else ""
        warnings.warn(f"{images.name}/{images.split} goes on without broken images{classes}: {found}", stacklevel=2)
    return found.images


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

    A split without a cache that was checked before needs no second ``check``.

    Raises:
        ValueError: if a transform does not fit, or an image is broken and ``check`` is "stop".
    """
    if config.cache:
        # As the transforms would resize: training as the paper does, evaluation as the backbone wants.
        images = data.cached(
            images,
            shorter_side=pixels.resize if config.transform == "crop" else None,
            interpolation="bilinear" if training else pixels.interpolation,
        )
    if check or config.cache:
        images = checked(images, config, progress=progress)
    return images.with_transform(_transform(config, pixels, training))


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
    names = {}
    for policy in ("keep", "drop"):
        try:
            names[policy] = {*list_images(replace(config, options={"small_classes": policy}), "all").class_names}
        except ValueError:  # a class without any image cannot be kept
            return []
    return sorted(names["keep"] - names["drop"])


def on_device(
    images: ImageSet, config: DataConfig, pixels: Pixels, device: Any, *, training: bool = False, progress: bool = False
) -> TensorSet:
    """Decode a prepared split into memory of the device, for ``data.resident``."""
    return load_tensors(
        images,
        device,
        shorter_side=pixels.resize if config.transform == "crop" else None,
        interpolation="bilinear" if training else pixels.interpolation,
        longest=max(384, 3 * pixels.resize // 2),
        workers=max(config.workers, 1),
        progress=progress,
        transform=config.transform if training or config.transform == "crop" else "none",
        size=pixels.size if config.transform == "crop" else None,
        options=config.transform_options,
    )


def fetch_data(config: DataConfig) -> None:
    """Download a published data set from its official address, unless it is there.

    Raises:
        WrongArgumentsError: if it is not a published data set.
        FileNotFoundError: if it has no address; the message says where to get it.
        ConnectionError: if its address cannot be reached.
    """
    check_fetched(config)
    data.create(config.name, config.root, "train", **{**config.options, "download": True})


def check_fetched(config: DataConfig) -> None:
    """Check that a data set can be downloaded.

    Raises:
        WrongArgumentsError: if not, with those that can.
    """
    if "download" not in option_names(config.name):
        known = [name for name in data.list() if "download" in option_names(name)]
        raise WrongArgumentsError(
            f"--download works for {', '.join(known)}, and {config.name} is none of them; leave it out"
        )


def _transform(config: DataConfig, pixels: Pixels, training: bool) -> Callable[[Any], Any] | None:
    makers: dict[str, Callable[..., Any]] = {"crop": data.train_transform, "shift": data.ShiftAndFlip}
    if config.transform == "none":
        if config.transform_options:
            raise ValueError(f"the transform 'none' has no options, got {', '.join(config.transform_options)}")
        return None
    maker = makers[config.transform]
    known = [name for name in inspect.signature(maker).parameters if name not in ("size", "resize")]
    unknown = [name for name in config.transform_options if name not in known]
    if unknown:
        raise ValueError(
            f"the transform {config.transform!r} has no option {', '.join(unknown)}; its options are {', '.join(known)}"
        )
    if config.transform == "shift":
        return maker(**config.transform_options) if training else None
    if not isinstance(pixels.size, int):
        raise ValueError(f"the transform 'crop' makes square images, but the backbone wants {pixels.size}")
    # A cache holds images at the first size already.
    resize = None if config.cache else pixels.resize
    if training:
        return maker(pixels.size, resize=resize, **config.transform_options)
    return data.evaluation_transform(pixels.size, resize=resize, interpolation=pixels.interpolation)
