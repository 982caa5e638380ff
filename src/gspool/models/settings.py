"""The settings of a saved model (config.json), read as untrusted input.

A downloaded model may choose an architecture, numbers and plain words. It may not name a file, an address or a folder,
and no value may take memory or time before it was checked. The same check runs before a model is saved.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gspool.models.backbone import Backbone
from gspool.models.create import OWN, TIMM
from gspool.models.freezing import Freeze, check_freeze
from gspool.models.pixels import Pixels
from gspool.models.weights import CHECKSUM
from gspool.pooling import registry
from gspool.version import __version__

# What `timm.create_model` passes on to an architecture that is only a number, a switch or a word.
TIMM_OPTIONS = frozenset(
    (
        *("img_size", "dynamic_img_size", "dynamic_img_pad", "strict_img_size", "patch_size", "window_size"),
        *("class_token", "reg_tokens", "no_embed_class", "pos_embed", "use_abs_pos", "always_partition"),
        *("global_pool", "pool_include_prefix", "output_stride", "fc_norm", "final_norm", "pre_norm"),
        *(
            "head_init_scale",
            "depth",
            "depths",
            "layers",
            "embed_dim",
            "dims",
            "num_heads",
            "mlp_ratio",
            "growth_rate",
            "kernel_sizes",
        ),
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
        """Return the arguments of `Embedder`. The saved preprocessing is kept, whatever a newer timm says.

        Raises:
            ValueError: if a backbone is needed and missing, given and not needed, or expects other pixels.
        """
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
