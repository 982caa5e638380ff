"""The short ways to name data on the command line, and what they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import yaml


def named_data(arguments: Sequence[str]) -> list[str]:
    """Write ``--data NAME`` and ``--data PICTURES`` as the options they stand for; a YAML file stays what it is.

    Example:
        >>> named_data(["runs/first", "--data", "cub", "--split", "test"])
        ['runs/first', '--data.name', 'cub', '--split', 'test']
    """
    words: list[str] = []
    rest = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--data=") else [word])]
    for word in rest:
        if words and words[-1] == "--data" and not word.startswith("{"):
            if Path(word).is_dir() or word.lower().endswith(".csv"):
                words[-1:] = ["--data.name", "folder", "--data.root", word]
                continue
            if not Path(word).is_file():
                words[-1] = "--data.name"
        words.append(word)
    return words


def other_name(arguments: Sequence[str], name: str) -> bool:
    """Whether the arguments name another data set than ``name``, in an option or in a YAML file of the data.

    Raises:
        ValueError: if that file is not YAML.
    """
    parts = [part for word in arguments for part in word.split("=", 1)]
    for flag, value in pairwise(parts):
        if flag == "--data.name" and value != name:
            return True
        if flag == "--data" and Path(value).is_file():
            try:
                content = yaml.safe_load(Path(value).read_text(encoding="utf-8"))
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                raise ValueError(f"{value} is not YAML: {' '.join(str(error).split())}") from error
            return isinstance(content, dict) and content.get("name", name) != name
    return False
