"""The arguments of `gspool evaluate`, and the short ways to name data on its command line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import yaml

from gspool.terminal.parser import TeachingParser
from gspool.training.config import DataConfig
from gspool.training.help_text import EVALUATE


def evaluate_parser(own: DataConfig | None) -> TeachingParser:
    """Build the parser; the data of the run is the default of every option of the data."""
    parser = TeachingParser("gspool evaluate", EVALUATE, "gspool evaluate RUN [--split NAME] [--data.OPTION VALUE ...]")
    parser.add_argument("run", metavar="RUN", help="The folder of a run, or of a saved model.")
    parser.add_argument(
        "--split",
        choices=["train", "validation", "test"],
        default=None,
        help="Which classes; test where there are splits.",
    )
    parser.add_argument("--ks", type=list[int], default=[1, 2, 4, 8], help="Ranks K of R@K.")
    parser.add_argument("--device", type=str, default=None, help="cpu, cuda ...; a GPU where there is one.")
    parser.add_argument("--json", type=str, default=None, metavar="FILE", help="Write the figures to a file as well.")
    parser.add_argument("--progress", type=bool, default=True, help="Show a progress bar.")
    parser.add_argument("--download", action="store_true", help="Download the data set first if it is missing.")
    parser.add_class_arguments(DataConfig, "data", as_positional=False)
    parser.describe(
        "--data", "DATA", "A folder or a CSV list of images, a data set by name, or a YAML file of the options below."
    )
    if own is not None:
        parser.set_defaults({f"data.{name}": value for name, value in vars(own).items()})
    return parser


def named_data(arguments: Sequence[str]) -> list[str]:
    """Write ``--data NAME`` and ``--data PICTURES`` as the options they stand for; a YAML file stays what it is.

    Example:
        >>> named_data(["runs/first", "--data", "cub", "--split", "test"])
        ['runs/first', '--data.name', 'cub', '--split', 'test']
    """
    words: list[str] = []
    for word in _split_words(arguments, "--data="):
        if words and words[-1] == "--data" and not word.startswith("{"):
            if Path(word).is_dir() or word.lower().endswith(".csv"):
                words[-1:] = ["--data.name", "folder", "--data.root", word]
                continue
            if not Path(word).is_file():
                words[-1] = "--data.name"
        words.append(word)
    return words


def other_data(arguments: Sequence[str], own: DataConfig) -> bool:
    """Check whether the arguments name other data than the run's own.

    Another name does; so does ``--data PICTURES``, unless it is the folder that the run was trained on. ``--data.root``
    alone says where the run's own data is now.

    Raises:
        ValueError: if a YAML file of the data is not YAML.
    """
    for flag, value in pairwise(_split_words(arguments, "--data")):
        if flag == "--data.name" and value != own.name:
            return True
        if flag != "--data":
            continue
        if Path(value).is_dir() or value.lower().endswith(".csv"):
            place = Path(own.root).expanduser().resolve() if own.name == "folder" and own.root else None
            return place != Path(value).resolve()
        if Path(value).is_file():
            try:
                content = yaml.safe_load(Path(value).read_text(encoding="utf-8"))
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                raise ValueError(f"{value} is not YAML: {' '.join(str(error).split())}") from error
            return isinstance(content, dict) and content.get("name", own.name) != own.name
        return value != own.name
    return False


def _split_words(arguments: Sequence[str], prefix: str) -> list[str]:
    return [part for word in arguments for part in (word.split("=", 1) if word.startswith(prefix) else [word])]
