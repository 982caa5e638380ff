"""Create backbones by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from gspool.models.backbone import Backbone
from gspool.models.bninception import BNInception
from gspool.models.cifar_resnet import ResNet20
from gspool.models.keras_resnet import KerasResNet50
from gspool.models.pixels import Pixels
from gspool.models.small_cnn import SmallCNN

OWN: dict[str, Callable[..., Backbone]] = {
    "bninception": BNInception,
    "keras/resnet50": KerasResNet50,
    "resnet20": ResNet20,
    "small_cnn": SmallCNN,
}
TIMM = "timm/"
# Published with ImageNet weights, which have to be given as a file.
FROM_A_FILE = ("bninception", "keras/resnet50")


def has_class_token(name: str) -> bool:
    """Return whether a backbone has a class token, without building it in memory.

    Example:
        >>> has_class_token("timm/vit_small_patch14_dinov2"), has_class_token("timm/resnet18")
        (True, False)
    """
    if not name.startswith(TIMM):
        return False
    from gspool.models import timm_backbone

    return timm_backbone.has_class_token(name.removeprefix(TIMM))


def create_backbone(name: str, *, pixels: Pixels | Mapping[str, Any] | None = None, **options: Any) -> Backbone:
    """Create a backbone: ``bninception``, ``keras/resnet50``, ``resnet20``, ``small_cnn``, or any ``timm/NAME``.

    Args:
        name: one of `list_backbones`. ImageNet classification in the paper uses ``timm/resnetv2_50`` and
            ``timm/tf_efficientnetv2_b3`` (Supp. 1.2).
        pixels: preprocessing, if your own weights were trained with another than the default.
        options: those of the backbone. ``weights=PATH`` loads a file; ``timm/`` also takes ``pretrained=True``, which
            downloads, ``layers=[5, 11]``, blocks of a vision transformer, and the options of `timm.create_model`.
            ``resnet20`` takes ``flavour``.

    Raises:
        ValueError: if the name, an option or the weights do not fit; near names are suggested.

    Example:
        >>> create_backbone("resnet20", flavour="preactivation-bottleneck").channels
        256
    """
    if not isinstance(name, str):
        raise ValueError(f"a backbone is named by a string such as 'timm/resnet50', got {type(name).__name__}")
    if name.startswith(TIMM):
        # timm takes seconds to import, and our own backbones do not need it.
        from gspool.models.timm_backbone import TimmBackbone

        backbone: Backbone = TimmBackbone(name.removeprefix(TIMM), **options)
    elif name in OWN:
        check_backbone_options(name, options)
        backbone = OWN[name](**options)
    else:
        raise ValueError(_unknown(name))
    if pixels is not None:
        backbone.pixels = pixels if isinstance(pixels, Pixels) else backbone.pixels.changed(pixels)
    return backbone


def check_backbone_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a backbone does not have, those of another backbone for example.

    Example:
        >>> check_backbone_options("timm/resnet18", {"pretrained": True, "img_size": 224})
        Traceback (most recent call last):
        ValueError: backbone 'timm/resnet18' has no option img_size; leave it out
    """
    unknown, hint = [], "leave it out"
    if name.startswith(TIMM):
        from gspool.models.timm_backbone import takes_option

        model = name.removeprefix(TIMM)
        unknown = [each for each in options if each != "pixels" and not takes_option(model, each, options[each])]
    elif name in OWN:
        known = [*inspect.signature(OWN[name]).parameters, "pixels"]
        unknown, hint = [each for each in options if each not in known], f"its options are {', '.join(known)}"
    if unknown:
        raise ValueError(f"backbone {name!r} has no option {', '.join(unknown)}; {hint}")


def is_published(name: str) -> bool:
    """Return whether a backbone is published with weights: one of timm, or one of our own with ImageNet weights."""
    return name in FROM_A_FILE or name.startswith(TIMM)


def begins_at_random(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether `create_backbone` would start from random weights."""
    sources = ("weights", "pretrained", "checkpoint_path") if name.startswith(TIMM) else ("weights",)
    return not any(options.get(option) for option in sources)


def list_backbones(pattern: str = "*") -> list[str]:
    """List the names of `create_backbone`, including those of timm, that match a shell pattern.

    Example:
        >>> list_backbones("*resnet20")
        ['resnet20']
        >>> list_backbones("timm/tf_efficientnetv2_b3")
        ['timm/tf_efficientnetv2_b3']
    """
    from timm import list_models

    return [name for name in (*OWN, *(TIMM + model for model in list_models())) if fnmatchcase(name, pattern)]


def _unknown(name: str) -> str:
    names = list_backbones()
    bare = TIMM + name
    near = [bare] if bare in names else get_close_matches(name, names, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    return f"there is no backbone {name!r}{hint} gspool.models.list_backbones() lists all {len(names)}"
