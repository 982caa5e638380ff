"""Every pooling layer by its name."""

from __future__ import annotations

import builtins
import inspect
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gspool.pooling.layer import PoolingLayer

# A new layer is one file in this folder and one line here. Modules are imported when their layer is asked for.
_LAYERS = {
    "gap": "gap:GAP",
    "gmp": "gmp:GMP",
    "gap+gmp": "gap_gmp:GAPGMP",
    "gemean": "gemean:GeMean",
    "gemax": "gemax:GeMax",
    "cbam": "cbam:CBAM",
    "crow": "crow:CroW",
    "delf": "delf:DeLF",
    "gsop": "gsop:GSoP",
    "otp": "otp:OTP",
    "solar": "solar:SOLAR",
    "tsmk": "tsmk:TSMK",
    "vlad": "vlad:NetVLAD",
    "weldon": "weldon:WELDON",
    "tfm": "tfm:TFM",
    "gsp": "gsp:GSP",
    "gmp+gsp": "gmp_gsp:GMPGSP",
    "gemean+gsp": "gemean_gsp:GeMeanGSP",
    "avgmax": "timm_pools:AvgMax",
    "catavgmax": "timm_pools:CatAvgMax",
    "attention": "timm_pools:AttentionPool",
    "simpool": "timm_pools:SimPool",
    "lse": "timm_pools:LSE",
    "ep": "ep:EP",
    "abmilp": "abmilp:ABMILP",
    "map": "latent_attention:MAP",
    "clip": "clip:CLIPPool",
    "aim": "aim:AIM",
}
# Besides them: the class token of a transformer alone, and, by this ending, joined with what any layer pools.
_CLASS_TOKEN = {"cls": "class_token:ClassToken"}
WITH_CLASS_TOKEN = "+cls"
# Options of that ending, with their defaults.
JOINING = {"patch_scale": 0.3, "join": "sum"}


def list() -> builtins.list[str]:
    """Return the name of every layer that pools any features: the paper's table, timm's, then attentive probing's.

    ``cls`` and ``NAME+cls`` come besides; they need a backbone with a class token.

    Example:
        >>> from gspool.pooling import registry
        >>> registry.list()[:4]
        ['gap', 'gmp', 'gap+gmp', 'gemean']
    """
    return [*_LAYERS]


def create(name: str, dim: int, **options: Any) -> PoolingLayer:
    """Make a pooling layer by name, for features of ``dim`` channels, with the paper's settings by default.

    Args:
        name: one of `list()`.
        dim: number of channels of the features.
        **options: keyword arguments of the layer's class; `options(name)` tells them with their defaults.

    Raises:
        ValueError: if there is no such layer or no such option, with the right names; or by the layer itself.
        ImportError: if the layer is one of timm's and timm is not installed.

    Example:
        >>> import torch
        >>> from gspool import pooling
        >>> layer = pooling.create("gemean", dim=512, p=4.0)
        >>> layer(torch.rand(2, 512, 7, 7)).shape
        torch.Size([2, 512])
    """
    check_options(name, options)
    base, with_class_token = without_class_token(name)
    if with_class_token:
        from gspool.pooling.class_token import WithClassToken

        joining = joining_options(options)
        return WithClassToken(create(base, dim, **options), dim, *joining)
    return layer_class(name)(dim, **options)


def without_class_token(name: str) -> tuple[str, bool]:
    """Split ``NAME+cls`` into the layer and whether the class token is added.

    Example:
        >>> without_class_token("gsp+cls"), without_class_token("cls")
        (('gsp', True), ('cls', False))
    """
    base = str(name).removesuffix(WITH_CLASS_TOKEN)
    return (base, True) if base != name and base in _LAYERS else (name, False)


def joining_options(options: dict[str, Any]) -> builtins.list[Any]:
    """Take the options of ``NAME+cls`` itself out of those of its layer, in the order of `WithClassToken`."""
    return [options.pop(name, default) for name, default in JOINING.items()]


def layer_class(name: str) -> type[PoolingLayer]:
    """Find the class behind a name.

    Raises:
        ValueError: if there is no such layer.
    """
    layers = {**_LAYERS, **_CLASS_TOKEN}
    if name not in layers:
        raise ValueError(
            f"there is no pooling layer {name!r}.{_suggestion(name, layers)} The names are {' '.join(layers)}, "
            f"and NAME{WITH_CLASS_TOKEN} for any of them"
        )
    module, class_name = layers[name].split(":")
    found: type[PoolingLayer] = getattr(import_module(f"gspool.pooling.{module}"), class_name)
    return found


def options(name: str) -> dict[str, Any]:
    """Return the options of a layer with their defaults.

    Raises:
        ValueError: if there is no such layer.

    Example:
        >>> from gspool.pooling import registry
        >>> registry.options("weldon")
        {'k': 3, 'k_min': None}
    """
    base, with_class_token = without_class_token(name)
    parameters = inspect.signature(layer_class(base)).parameters.values()
    known = {each.name: each.default for each in parameters if each.name != "dim"}
    return {**known, **JOINING} if with_class_token else known


def check_options(name: str, given: Mapping[str, Any]) -> None:
    """Refuse what is not an option of the layer, and words in the place of numbers.

    Raises:
        ValueError: if one of the given names is none of the layer's, with those it has; or its value is a word where
            the default is a number, true or false.
    """
    known = options(name)
    for option, value in given.items():
        if option in known:
            if isinstance(value, str) and isinstance(known[option], int | float):
                right = "true or false" if isinstance(known[option], bool) else f"a number such as {known[option]}"
                raise ValueError(f"{option} of {name} is {right}, got {value!r}")
            continue
        if option == "out_dim":
            raise ValueError(
                f"{name} pools and does not embed, so it has no out_dim; for an embedding of another length use "
                f"create_embedding({name!r}, dim, out_dim)"
            )
        has = f"Its options are {', '.join(known)}" if known else "It has none"
        raise ValueError(f"{name} has no option {option!r}.{_suggestion(option, known)} {has}")


def _suggestion(name: object, right: Collection[str]) -> str:
    asked = str(name).lower()
    # The paper itself writes GMP+GAP as often as GAP+GMP.
    turned = "+".join(reversed(asked.split("+")))
    close = [turned] if turned in right else get_close_matches(asked, right, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
