"""Layers as a person writes them, ``gsp:mu=0.2,prototypes=128``, and the backends to try them with."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, NamedTuple

from gspool import pooling
from gspool.pooling.registry import check_options, layer_class

UNIT = "gap"
EVERY = "all"
_WORDS = {"true": True, "false": False, "none": None, "null": None}


class LayerWord(NamedTuple):
    """A layer to measure: how it is called in the table, its name in the registry, its options."""

    title: str
    name: str
    options: dict[str, Any]


def read_layers(words: Sequence[str]) -> list[LayerWord]:
    """Read names with options; GAP comes first in any case, and ``all`` is every layer.

    Raises:
        ValueError: if there is no such layer or option, with the right names.

    Example:
        >>> for word in read_layers(["gsp:mu=0.2,prototypes=128"]):
        ...     print(word)
        LayerWord(title='gap', name='gap', options={})
        LayerWord(title='gsp:mu=0.2,prototypes=128', name='gsp', options={'mu': 0.2, 'prototypes': 128})
    """
    asked = [name for word in words for name in (pooling.list() if word == EVERY else [word])]
    return [read_layer(word) for word in dict.fromkeys([UNIT, *asked])]


def read_layer(word: str) -> LayerWord:
    """Read one name with its options.

    Raises:
        ValueError: if it is not written as NAME or NAME:OPTION=VALUE,..., or names what there is not.
    """
    name, _, rest = word.partition(":")
    layer_class(name)
    options: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        option, equals, value = part.partition("=")
        if not equals or not value:
            raise ValueError(f"options are written NAME:OPTION=VALUE,OPTION=VALUE, got {part!r} in {word!r}")
        options[option] = _value(value)
    check_options(name, options)
    if options.get("warm_start"):
        raise ValueError(
            f"{word}: until its warm start is over the layer only averages, so its cost would not be seen; leave it out"
        )
    return LayerWord(word, name, options)


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def with_backends(words: Sequence[LayerWord], backend: str) -> list[LayerWord]:
    """Give the layers that have a backend the one asked for, or one row each for ``all``; a backend in a word stays.

    Raises:
        ValueError: if a backend is asked for and no layer has one.

    Example:
        >>> [word.title for word in with_backends(read_layers(["gsp"]), "all")]
        ['gap', 'gsp (torch)', 'gsp (triton)']
    """
    if backend == "auto":
        return [*words]
    found = []
    for word in words:
        if "backend" not in pooling.options(word.name) or "backend" in word.options:
            found.append(word)
            continue
        for each in ("torch", "triton") if backend == "all" else (backend,):
            found.append(LayerWord(f"{word.title} ({each})", word.name, word.options | {"backend": each}))
    if found == [*words]:
        raise ValueError(f"a backend belongs to GSP, and none of {', '.join(word.title for word in words)} has one")
    return found
