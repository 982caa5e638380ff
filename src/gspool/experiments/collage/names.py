"""What the backbones are called in rows and variants of the collage study, and what results of before called them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Neither is the paper's for certain: `left_open` says what it cites, what it describes and what its authors built.
BACKBONE_NAMES = {
    "postactivation": "ResNet20 (post-activation)",
    "preactivation-bottleneck": "ResNet20 (pre-activation)",
}
_POST, _PRE = BACKBONE_NAMES.values()
# What a row of the tuned table says after the name of the layer.
BACKBONES = {"postactivation": "", "preactivation-bottleneck": f", {_PRE}"}
# Endings, beginnings and whole names that older results have, and what stands for them now.
_BEFORE = (
    (r"^what helped, together$", f"what helped, together, {_PRE}"),
    (r", the paper's backbone$", f", {_POST}"),
    (r"^around ResNet20, ", f"around {_POST}, "),
    (r"pre-activation ResNet20", _PRE),
)


def present_name(name: str) -> str:
    """Give the name that a row or a variant has now; one that never changed, or has changed already, stays.

    Example:
        >>> present_name("GAP, pre-activation ResNet20"), present_name("GAP, ResNet20 (pre-activation)")
        ('GAP, ResNet20 (pre-activation)', 'GAP, ResNet20 (pre-activation)')
        >>> present_name("what helped, together, the paper's backbone"), present_name("lr 1e-4")
        ('what helped, together, ResNet20 (post-activation)', 'lr 1e-4')
    """
    for before, now in _BEFORE:
        name = re.sub(before, now, name)
    return name


def with_present_names(value: Mapping[str, Any]) -> dict[str, Any]:
    """Give a result of the study with the names of now; its figures are untouched."""
    return {
        **value,
        "search": [{**row, "variant": present_name(row["variant"])} for row in value["search"]],
        "tuned": [{**row, "row": present_name(row["row"])} for row in value["tuned"]],
        "best": {place: present_name(name) for place, name in value["best"].items()},
    }
