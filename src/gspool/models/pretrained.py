"""An embedding model as a folder: model.safetensors, config.json, README.md (the model card). Never a pickle.

The folder is read as untrusted input. A downloaded model may choose an architecture, numbers and plain words. It may
not name a file, an address or a folder, and no value may take memory or time before it was checked. The same check runs
before a model is saved.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from gspool.models.backbone import Backbone
from gspool.models.create import OWN, TIMM
from gspool.models.freezing import Freeze, check_freeze
from gspool.models.pixels import Pixels
from gspool.models.weights import CHECKSUM, check_fit, copy_weights, read_weights, renamed_together, write_weights
from gspool.pooling import registry
from gspool.version import __version__

# What `timm.create_model` passes on to an architecture that is only a number, a switch or a word.
TIMM_OPTIONS = frozenset(
    (
        *("img_size", "dynamic_img_size", "dynamic_img_pad", "strict_img_size", "patch_size", "window_size"),
        *("class_token", "reg_tokens", "no_embed_class", "pos_embed", "use_abs_pos", "always_partition"),
        *("global_pool", "pool_include_prefix", "output_stride", "fc_norm", "final_norm", "pre_norm"),
        *("head_init_scale", "depth", "depths", "layers", "embed_dim", "dims", "num_heads", "mlp_ratio"),
        *("growth_rate", "kernel_sizes"),
        *("cardinality", "base_width", "stem_width", "stem_type", "block_reduce_first", "avg_down", "conv_mlp"),
        *("drop_rate", "drop_path_rate", "drop_block_rate", "attn_drop_rate", "proj_drop_rate", "pos_drop_rate"),
        *("patch_drop_rate", "act_layer", "norm_layer", "norm_eps", "bn_eps", "bn_momentum", "bn_tf", "qkv_bias"),
        *("qk_norm", "init_values", "ls_init_value", "weight_init", "zero_init_last"),
        *("scriptable", "exportable", "no_jit"),
    )
)
# Where the first weights came from, and the preprocessing, which has a field of its own: never part of the options.
NOT_SAVED = frozenset(
    ("cache_dir", "checkpoint_path", "pixels", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "weights")
)
# Options that build layers, unroll steps or size an image, whatever the weights file holds.
LIMITS = {"depth": 512, "depths": 512, "layers": 512, "iterations": 1_000, "img_size": 4_096, "window_size": 512}
LARGEST_NUMBER = 1_000_000
LARGEST_CONFIG = 1_000_000  # bytes
LONGEST_LIST = 32
WORD = re.compile(r"[A-Za-z0-9_.+-]{0,100}")
BACKBONE = re.compile(r"([a-z]+/)?[A-Za-z0-9_.-]{1,100}")
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
GENERATED = "<!-- Written by gspool. Delete this line to keep the page as it is when the model is saved again. -->"
# Buffers that no file holds (relative positions, attention masks) may take this much beyond twice the weights.
ROOM_FOR_BUFFERS = 2**30


class Settings(NamedTuple):
    """The arguments that build an embedding model again; ``backbone`` is None for a backbone of the user's own."""

    backbone: str | None
    backbone_options: dict[str, Any]
    pooling: str
    pooling_options: dict[str, Any]
    dim: int | None
    freeze: Freeze
    normalise: bool
    pixels: dict[str, Any] | None = None

    def arguments(self, backbone: Backbone | None, folder: Path) -> dict[str, Any]:
        """Return the arguments of `Embedder`. The saved preprocessing is kept, whatever a newer timm says."""
        arguments = self._asdict()
        pixels = arguments.pop("pixels")
        if self.backbone is None:
            if backbone is None:
                raise ValueError(
                    f"the model in {folder} was saved with a custom backbone; create that backbone and pass it as "
                    "Embedder.from_pretrained(path, backbone=...)"
                )
            if backbone.pixels.as_dict() != pixels:
                raise ValueError(
                    f"the model in {folder} was trained on pixels {pixels}, but the given backbone expects "
                    f"{backbone.pixels.as_dict()}; create the backbone with the pixels of the model"
                )
            return {**arguments, "backbone": backbone, "backbone_options": None}
        if backbone is not None:
            raise ValueError(f"the model in {folder} has its own backbone {self.backbone!r}; leave out backbone=")
        return {**arguments, "backbone_options": {**self.backbone_options, "pixels": pixels}}


def portable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without the source of the first weights: a saved model has its own weights."""
    return {name: value for name, value in options.items() if name not in NOT_SAVED}


def read_config(path: Path) -> tuple[Settings, str | None]:
    """Read and check config.json: the settings, and the SHA-256 of the weights file (None in older models).

    Raises:
        ValueError: if it is not JSON, or a key or value is not one that `save_pretrained` writes.
    """
    if path.stat().st_size > LARGEST_CONFIG:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes; the config of a model has at most a few thousand")
    try:
        config = json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable as JSON ({error}); download or save the model again") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold an object with the settings of an Embedder, got {type(config).__name__}")
    written_by, checksum = config.pop("gspool", "another program"), config.pop(CHECKSUM, None)
    missing = [name for name in Settings._fields if name not in config]
    unknown = [name for name in config if name not in Settings._fields]
    if missing or unknown:
        raise ValueError(
            f"{path} (written by gspool {_short(written_by)}, this is {__version__}) is not the config of an Embedder: "
            f"missing {', '.join(missing) or 'nothing'}; unknown {_short(unknown) if unknown else 'nothing'}. "
            "Load it with the version that wrote it, or save the model again"
        )
    if checksum is not None and not (isinstance(checksum, str) and re.fullmatch("[0-9a-f]{64}", checksum)):
        raise ValueError(f"{path}: {CHECKSUM} must be 64 hexadecimal digits, got {_short(checksum)}")
    settings = Settings(**config)
    try:
        check_settings(settings)
    except ValueError as error:
        raise ValueError(f"{path}: {str(error)[:500]}") from error
    return settings, checksum


def check_settings(settings: Settings) -> None:
    """Check names, types and sizes of settings that come from a file or go to one; nothing is built.

    Raises:
        ValueError: for the first value that a saved model may not have, with what is expected.

    Example:
        >>> options = {"checkpoint_path": "/tmp/evil.pth"}
        >>> check_settings(Settings("timm/resnet18", options, "gap", {}, 8, "none", True, Pixels().as_dict()))
        Traceback (most recent call last):
        ValueError: a saved model may not set the backbone option 'checkpoint_path'; timm/resnet18 may have ...
    """
    for name, kind in (("pooling", str), ("normalise", bool), ("backbone_options", dict), ("pooling_options", dict)):
        if not isinstance(getattr(settings, name), kind):
            raise ValueError(f"{name} must be a {kind.__name__}, got {_short(getattr(settings, name))}")
    if settings.backbone is not None and not _is(BACKBONE, settings.backbone):
        raise ValueError(f"backbone must be a name such as 'timm/resnet50', got {_short(settings.backbone)}")
    check_freeze(settings.freeze)
    dim = settings.dim
    if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int) or not 1 <= dim <= LARGEST_NUMBER):
        raise ValueError(f"dim must be an integer from 1 to {LARGEST_NUMBER:,}, or null, got {_short(dim)}")
    if not isinstance(settings.pixels, dict):
        raise ValueError(f"pixels must be an object with the preprocessing, got {_short(settings.pixels)}")
    Pixels().changed(settings.pixels)
    _check_backbone_options(settings)
    registry.layer_class(registry.without_class_token(settings.pooling)[0])
    for where, options in (("backbone", settings.backbone_options), ("pooling", settings.pooling_options)):
        for name, value in options.items():
            _check_value(f"the {where} option {name!r}", value, LIMITS.get(name, LARGEST_NUMBER))


def _check_backbone_options(settings: Settings) -> None:
    name = settings.backbone
    if name is None or not (name in OWN or name.startswith(TIMM)):
        allowed: frozenset[str] = frozenset()
    elif name in OWN:
        allowed = frozenset(inspect.signature(OWN[name]).parameters) - NOT_SAVED
    else:
        allowed = TIMM_OPTIONS
    for option in settings.backbone_options:
        if option not in allowed:
            raise ValueError(
                f"a saved model may not set the backbone option {_short(option)}; {name or 'a custom backbone'} may "
                f"have {', '.join(sorted(allowed)) or 'none'}"
            )


def _check_value(what: str, value: Any, largest: float) -> None:
    """Allow None, switches, finite numbers up to a limit, plain words, and short lists of these."""
    if isinstance(value, list | tuple):
        if len(value) > LONGEST_LIST or any(isinstance(each, list | tuple | dict) for each in value):
            raise ValueError(f"{what} may be a list of at most {LONGEST_LIST} numbers or words, got {_short(value)}")
        numbers = [abs(each) for each in value if isinstance(each, int | float)]
        for each in (*value, sum(numbers)):
            _check_value(what, each, largest)
    elif isinstance(value, str):
        if not _is(WORD, value):
            raise ValueError(f"{what} must be a plain word that names no file or address, got {_short(value)}")
    elif isinstance(value, int | float):
        # Written so that a NaN is refused as well.
        if not abs(value) <= largest:
            raise ValueError(f"{what} must be a finite number of at most {largest:,}, got {_short(value)}")
    elif value is not None:
        raise ValueError(f"{what} must be a number, a word, true, false or a list of these, got {_short(value)}")


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"the key {_short(max(keys, key=keys.count))} appears twice")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _short(value: object) -> str:
    """Return a value for a message: one line, no control characters, not the whole of something long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 80 else f"{text[:77]}..."


if TYPE_CHECKING:
    from gspool.models.embedder import Embedder

    Model = TypeVar("Model", bound=Embedder)


def save(model: Embedder, folder: Path, metrics: Mapping[str, float], hub_options: dict[str, Any]) -> str | None:
    """Write weights, config with their checksum, and card into a temporary folder, then rename them into place.

    Raises:
        ValueError: if a setting is one that loading would refuse; nothing is written then.
    """
    settings = check_savable(model)
    card = {"metrics": metrics, **(hub_options.pop("model_card_kwargs", None) or {})}
    hub_options.pop("config", None)  # config.json is ours to write
    push, repository = hub_options.pop("push_to_hub", False), hub_options.pop("repo_id", folder.name)
    page = folder / CARD
    with renamed_together(folder) as temporary:
        config = {"gspool": __version__, **settings._asdict(), CHECKSUM: write_weights(model, temporary / WEIGHTS)}
        (temporary / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if not page.exists() or GENERATED in page.read_text(encoding="utf-8"):
            model.generate_model_card(**card).save(temporary / CARD)
    return model.push_to_hub(repository, model_card_kwargs=card, **hub_options) if push else None


def check_savable(model: Embedder) -> Settings:
    """Return the settings to save; call it before a long training, rather than learn at its end what is wrong."""
    settings = model.settings._replace(pixels=model.pixels.as_dict())
    try:
        check_settings(settings)
    except ValueError as error:
        raise ValueError(f"this model cannot be saved, because it could not be loaded again: {error}") from error
    return settings


def local_folder(path: str | Path, hub_options: Mapping[str, Any]) -> Path:
    """Find the folder on this machine, or download it from the Hugging Face hub."""
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
    """
    settings, checksum = read_config(folder / CONFIG)
    arguments = settings.arguments(backbone, folder)
    path = folder / WEIGHTS
    weights = read_weights(path, checksum)
    with torch.device("meta"):
        # Not frozen, so that a backbone of the user's own keeps what it can learn for the second construction.
        plan = _build(model_class, {**arguments, "freeze": "none"}, folder).eval()
        if backbone is None:
            _check_image_size(plan, folder)
    check_fit(plan, weights, source=str(path))
    size = sum(value.numel() * value.element_size() for value in (*plan.parameters(), *plan.buffers()))
    if size > 2 * path.stat().st_size + ROOM_FOR_BUFFERS:
        raise ValueError(
            f"{folder / CONFIG} asks for {size / 2**30:.1f} GiB, far more than its weights; it is not loaded"
        )
    del plan
    model = _build(model_class, arguments, folder)
    copy_weights(model, weights, source=str(path))
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
