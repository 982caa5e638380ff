"""An embedding model as a folder: model.safetensors, config.json, README.md (the model card). Never a pickle."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from gspool.models.backbone import Backbone
from gspool.models.settings import Settings, check_settings, read_config
from gspool.models.weights import (
    CHECKSUM,
    check_checksum,
    check_fit,
    copy_weights,
    file_forms,
    read_weights,
    write_weights,
)
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.models.embedder import Embedder

    Model = TypeVar("Model", bound=Embedder)

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
GENERATED = "<!-- Written by gspool. Delete this line to keep the page as it is when the model is saved again. -->"
# Buffers that no file holds (relative positions, attention masks) may take this much beyond twice the weights.
ROOM_FOR_BUFFERS = 2**30


def save(model: Embedder, folder: Path, metrics: Mapping[str, float], hub_options: dict[str, Any]) -> str | None:
    """Write weights, config with their checksum, and card into a temporary folder, then rename them into place.

    Raises:
        ValueError: if a setting is one that loading would refuse; nothing is written then.
    """
    settings = check_savable(model)
    card = {"metrics": metrics, **(hub_options.pop("model_card_kwargs", None) or {})}
    hub_options.pop("config", None)  # config.json is ours to write
    push, repository = hub_options.pop("push_to_hub", False), hub_options.pop("repo_id", folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    # Inside the folder itself, because a rename is only atomic within one file system; under one name, so that the
    # next save removes what a crash left behind.
    temporary = folder / ".saving"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        config = {"gspool": __version__, **settings._asdict(), CHECKSUM: write_weights(model, temporary / WEIGHTS)}
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        model.generate_model_card(**card).save(temporary / CARD)
        for name in (WEIGHTS, CONFIG):
            os.replace(temporary / name, folder / name)
        if not (folder / CARD).exists() or GENERATED in (folder / CARD).read_text(encoding="utf-8"):
            os.replace(temporary / CARD, folder / CARD)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return model.push_to_hub(repository, model_card_kwargs=card, **hub_options) if push else None


def check_savable(model: Embedder) -> Settings:
    """Return the settings to save; call it before a long training, rather than learn at its end what is wrong.

    Raises:
        ValueError: if a setting is one that loading would refuse.
    """
    settings = model.settings._replace(pixels=model.pixels.as_dict())
    try:
        check_settings(settings)
    except ValueError as error:
        raise ValueError(f"this model cannot be saved, because it could not be loaded again: {error}") from error
    return settings


def local_folder(path: str | Path, hub_options: Mapping[str, Any]) -> Path:
    """Find the folder on this machine, or download it from the Hugging Face hub.

    Raises:
        ValueError: if a path does not exist, or the folder holds no model.
    """
    folder = Path(path)
    if not folder.is_dir():
        # Names of the hub have the form owner/name; anything else can only be meant as a path.
        if isinstance(path, Path) or folder.is_absolute() or len(folder.parts) != 2 or folder.parts[0] in (".", ".."):
            raise ValueError(
                f"there is no folder {path}; give a folder that save_pretrained wrote, or owner/name of the hub"
            )
        try:
            folder = Path(snapshot_download(str(path), allow_patterns=[CONFIG, WEIGHTS, CARD], **hub_options))
        except (HfHubHTTPError, OSError, ValueError) as error:
            raise ValueError(
                f"there is no local folder {path}, and the Hugging Face hub returned no model of that name "
                f"({' '.join(str(error).split())})"
            ) from error
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            found = ", ".join(sorted(entry.name for entry in folder.iterdir())) or "nothing"
            raise ValueError(
                f"{folder} holds no {name} (found: {found}); expected a folder that save_pretrained wrote. "
                "Pickled weights (.bin, .pth) are never loaded here"
            )
    return folder


def load(model_class: type[Model], folder: Path, backbone: Backbone | None) -> Model:
    """Build the model that config.json describes, once it is known to fit the weights file, and load the weights.

    The model is first built on the meta device, where tensors have shapes and take no memory.

    Raises:
        ValueError: if a file is damaged, or config and weights do not fit together.
    """
    settings, checksum = read_config(folder / CONFIG)
    path = folder / WEIGHTS
    check_checksum(path, checksum, CONFIG)
    arguments = settings.arguments(backbone, folder)
    with torch.device("meta"):
        # Not frozen, so that a backbone of the user's own keeps what it can learn for the second construction.
        plan = _build(model_class, {**arguments, "freeze": "none"}, folder).eval()
        if backbone is None:
            _check_image_size(plan, folder)
    check_fit(plan, file_forms(path), source=str(path))
    size = sum(value.numel() * value.element_size() for value in (*plan.parameters(), *plan.buffers()))
    if size > 2 * path.stat().st_size + ROOM_FOR_BUFFERS:
        raise ValueError(
            f"{folder / CONFIG} asks for {size / 2**30:.1f} GiB, far more than its weights; it is not loaded"
        )
    del plan
    model = _build(model_class, arguments, folder)
    copy_weights(model, read_weights(path), source=str(path))
    return model


def _build(model_class: type[Model], arguments: dict[str, Any], folder: Path) -> Model:
    try:
        return model_class(**arguments)
    except ImportError:
        raise
    except Exception as error:  # timm and torch raise anything at values that do not fit
        reason = " ".join(str(error).split())[:500]
        raise ValueError(f"{folder / CONFIG} describes a model that cannot be built: {reason}") from error


def _check_image_size(plan: Embedder, folder: Path) -> None:
    """Check that the backbone takes images of its own preprocessing; on the meta device this computes shapes alone."""
    height, width = plan.pixels.crop
    try:
        features = plan.backbone(torch.zeros(1, 3, height, width))
    except Exception as error:  # as above
        reason = " ".join(str(error).split())[:500]
        raise ValueError(
            f"{folder / CONFIG}: the backbone does not take images of {height} x {width} pixels, the size in its "
            f"pixels: {reason}"
        ) from error
    if features.numel() == 0:
        raise ValueError(f"{folder / CONFIG}: images of {height} x {width} pixels leave no feature map to pool")
