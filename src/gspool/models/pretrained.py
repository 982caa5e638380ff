"""An embedding model as a folder: safetensors, a readable config.json, a model card. Never a pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import save_file

from gspool.models.backbone import Backbone
from gspool.models.freezing import Freeze
from gspool.models.weights import copy_weights, read_weights
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.models.embedder import Embedder

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
GENERATED = "<!-- Written by gspool. Delete this line to keep the page as it is when the model is saved again. -->"


class Settings(NamedTuple):
    """What it takes to build an embedding model again; ``backbone`` is None for one of the user's own."""

    backbone: str | None
    backbone_options: dict[str, Any]
    pooling: str
    pooling_options: dict[str, Any]
    dim: int
    freeze: Freeze
    normalise: bool
    pixels: dict[str, Any] | None = None

    def arguments(self, backbone: Backbone | None, folder: Path) -> dict[str, Any]:
        """Give the arguments of `Embedder`; the saved preprocessing holds, whatever a newer timm may say.

        Raises:
            ValueError: if a backbone is needed and not given, given and not needed, or expects other pixels.
        """
        arguments = self._asdict()
        pixels = arguments.pop("pixels")
        if self.backbone is None:
            if backbone is None:
                raise ValueError(
                    f"the model in {folder} was saved with a backbone of its maker's own; "
                    "make that backbone and pass it as Embedder.from_pretrained(path, backbone=...)"
                )
            if backbone.pixels.as_dict() != pixels:
                raise ValueError(
                    f"the model in {folder} was trained on pixels {pixels}, the backbone given to it expects "
                    f"{backbone.pixels.as_dict()}; make the backbone with those of the model"
                )
            return {**arguments, "backbone": backbone, "backbone_options": None}
        if backbone is not None:
            raise ValueError(f"the model in {folder} brings its backbone {self.backbone!r}; leave out backbone=")
        return {**arguments, "backbone_options": {**self.backbone_options, "pixels": pixels}}


def portable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out where the first weights came from: a saved model carries its own."""
    return {name: value for name, value in options.items() if name not in ("weights", "pretrained", "pixels")}


def save(
    model: Embedder,
    folder: Path,
    save_pretrained: Callable[..., str | None],
    metrics: Mapping[str, float],
    hub_options: dict[str, Any],
) -> str | None:
    """Let huggingface_hub write the files aside, then rename them into the folder."""
    card = {"metrics": metrics, **(hub_options.pop("model_card_kwargs", None) or {})}
    hub_options.pop("config", None)  # config.json is ours to write
    push, repository = hub_options.pop("push_to_hub", False), hub_options.pop("repo_id", folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    # Inside the folder itself: a rename is only atomic within one file system.
    with TemporaryDirectory(dir=folder, prefix=".saving-") as aside:
        save_pretrained(aside, model_card_kwargs=card)
        for name in (WEIGHTS, CONFIG):
            os.replace(Path(aside, name), folder / name)
        if not (folder / CARD).exists() or GENERATED in (folder / CARD).read_text(encoding="utf-8"):
            os.replace(Path(aside, CARD), folder / CARD)
    return model.push_to_hub(repository, model_card_kwargs=card, **hub_options) if push else None


def write_files(model: Embedder, folder: Path) -> None:
    """Write weights and config.

    Raises:
        ValueError: if an option is not made of numbers, words, lists and dictionaries, and so cannot be written.
    """
    config = {"gspool": __version__, **model.settings._asdict(), "pixels": model.pixels.as_dict()}
    try:
        text = json.dumps(config, indent=2)
    except TypeError as error:
        raise ValueError(
            f"the options of this model cannot be written as JSON ({error}); "
            "give backbone_options and pooling_options as numbers, words, lists and dictionaries"
        ) from error
    # Copies, because safetensors refuses tensors that share memory, and some networks tie their weights.
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


def local_folder(path: str | Path, hub_options: Mapping[str, Any]) -> Path:
    """Find the folder on this machine, or fetch it from the hub.

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
                f"there is no folder {path} here, and the Hugging Face hub did not give a model of that name ({error})"
            ) from error
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            found = ", ".join(sorted(entry.name for entry in folder.iterdir())) or "nothing"
            raise ValueError(
                f"{folder} holds no {name} (found: {found}); expected a folder that save_pretrained wrote. "
                "Pickled weights (.bin, .pth) are never loaded here"
            )
    return folder


def read_settings(folder: Path) -> Settings:
    """Read config.json.

    Raises:
        ValueError: if it is not JSON, or its keys are not those that `save_pretrained` writes.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not readable as JSON ({error}); save the model again") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold an object with the settings of an Embedder, got {type(config).__name__}")
    written_by = config.pop("gspool", "another program")
    missing = [name for name in Settings._fields if name not in config]
    unknown = [name for name in config if name not in Settings._fields]
    if missing or unknown:
        raise ValueError(
            f"{path} (written by gspool {written_by}, this is {__version__}) is not the config of an Embedder: "
            f"missing {', '.join(missing) or 'nothing'}; unknown {', '.join(unknown) or 'nothing'}. "
            "Load it with the version that wrote it, or save the model again"
        )
    return Settings(**config)


def read_weights_into(model: Embedder, folder: Path) -> None:
    """Read model.safetensors and check every name and shape against the model that config.json describes.

    Raises:
        ValueError: if they do not fit.
    """
    copy_weights(model, read_weights(folder / WEIGHTS), source=str(folder / WEIGHTS))
