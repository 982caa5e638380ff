"""Read a configuration from the command line or from YAML; errors name the valid keys and values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gspool.models.create import TIMM, has_class_token
from gspool.pooling.registry import check_options, without_class_token
from gspool.terminal.parser import TeachingParser
from gspool.training.config import TrainConfig
from gspool.training.head_settings import HEAD_OPTIONS, USUAL, frozen_defaults, layer_options
from gspool.training.presets import DEFAULT, PRESETS, preset, with_whole_network

HELP = """
Train an embedding model and evaluate it on classes it has never seen.

Without arguments, GSP and then GAP are trained on glyph collages (a synthetic data set, no download). The run ends with
a table and a report.html with curves, retrieval examples and maps of the pooling weights.

    gspool train                                                   GSP and GAP on glyphs, minutes on a CPU
    gspool train --preset folder --data.root pictures/             your own images, pictures/CLASS/picture.jpg: a head
                                                                   on a frozen network
    gspool train --finetune runs/NAME                              ... then the whole network, from that head
    gspool train --preset paper/cub --data.root datasets/ \\
        --model.backbone_options.weights bninception.safetensors   a benchmark of the paper
    gspool train --preset paper/cub --print_config > cub.yaml      write a configuration, edit it ...
    gspool train --config cub.yaml --trainer.seed 1                ... and run it
    gspool train --resume runs/NAME                                continue after Ctrl-C, a crash or a kill
    gspool train ... --trainer.max_time 30m                        stop after half an hour with the best model so far

The folder of a run holds config.yaml, versions.json, log.txt, metrics.csv, tensorboard/, last.pt, previous.pt, best.pt,
model/ (for gspool.Embedder.from_pretrained), result.json, classes.csv, threshold.json and report.html.
"""
Config = TypeVar("Config")


def train_parser(defaults: TrainConfig | None = None, preset_name: str = DEFAULT) -> Any:
    """Build the parser of `gspool train`: every field of a `TrainConfig` is an option and a key of YAML."""
    usage = "gspool train [--preset NAME] [--config FILE] [--SECTION.OPTION VALUE ...]"
    parser = TeachingParser("gspool train", HELP, usage)
    parser.add_argument("--config", action="config", help="A YAML file with any of the options below.")
    parser.add_argument(
        "--preset", default=preset_name, help=f"Start from a complete configuration: {', '.join(PRESETS)}."
    )
    parser.add_argument(
        "--resume",
        type=str,
        default=None,
        metavar="RUN",
        help="Continue the interrupted run of this folder, with the settings it has.",
    )
    parser.add_argument(
        "--finetune",
        type=str,
        default=None,
        metavar="RUN",
        help="Go on from the trained head of this run with the whole network; other settings are those of the run.",
    )
    parser.add_argument("--download", action="store_true", help="Download the data set first if it is missing.")
    parser.add_class_arguments(TrainConfig, as_positional=False)
    # A switch on the command line that may also have a value: in YAML it has three.
    (from_scratch,) = (action for action in parser._actions if "--from_scratch" in action.option_strings)
    from_scratch.nargs, from_scratch.const = "?", True
    parser.set_defaults(plain(defaults or preset(preset_name)))
    return parser


def parse_config(arguments: Sequence[str]) -> tuple[TrainConfig, str | None]:
    """Read a configuration from arguments and YAML files; return it, and the run to resume if one is named.

    Raises:
        SystemExit: as `parse_arguments`.

    Example:
        >>> config, resume = parse_config(["--preset", "paper/cub", "--model.pooling_options.mu", "0.2"])
        >>> config.loss.name, config.model.pooling_options["mu"], resume
        ('c2', 0.2, None)
    """
    return parse_arguments(arguments)[:2]


def parse_arguments(arguments: Sequence[str]) -> tuple[TrainConfig, str | None, bool]:
    """Read the settings, the run to resume if one is named, and whether to download data.

    The preset (or the run of ``--finetune``) comes first, then files and flags in their order.

    Raises:
        SystemExit: with status 2 for a wrong key or value, with status 0 after ``--help`` or ``--print_config``.
    """
    runs = values_of("--finetune", arguments)
    try:
        name = _preset_of(arguments)
        start = finetuned(runs[-1]) if runs else preset(name)
    except ValueError as error:
        train_parser().error(str(error))
    parser = train_parser(start, name)
    try:
        arguments = _with_own_options(arguments, start)
    except ValueError as error:
        parser.error(str(error))
    namespace = parser.parse_args(arguments)
    return as_config(TrainConfig, parser, namespace), namespace["resume"], namespace["download"]


def _with_own_options(arguments: Sequence[str], start: TrainConfig) -> list[str]:
    """Leave out the options of another backbone or pooling layer than the one that the command line names.

    They come from the preset, or from files. Those that both have are kept, and of a backbone only ``pretrained``:
    weights and sizes belong to one network. A layer named for a preset with a frozen backbone has its own defaults on
    such features, rate of the head included; without a class token NAME+cls of the preset becomes NAME.
    """
    model, files = plain(start.model), _files(arguments)
    for content in files:
        model |= content.get("model") or {}
    words: list[str] = []
    # A frozen backbone, or a first phase with it, which has a learning rate of its own.
    frozen_preset = (start.model.freeze == "all" or start.head.steps > 0) and not files
    places = {**HEAD_OPTIONS, "lr": ("head" if start.head.steps else "optimiser", "lr")}
    backbones, layers = (values_of(f"--model.{part}", arguments) for part in ("backbone", "pooling"))
    asks = frozen_preset and (backbones or layers)  # timm takes seconds to import
    class_token = asks and has_class_token([model["backbone"], *backbones][-1])
    if asks and not layers and not class_token:
        words = ["--model.pooling", without_class_token(model["pooling"])[0]]
    for part in ("backbone", "pooling"):
        named = values_of(f"--model.{part}", [*words, *arguments])
        if not named or named[-1] == model[part]:
            continue
        options = model[f"{part}_options"]
        if part == "pooling" and frozen_preset:
            chosen = {**USUAL, **frozen_defaults(named[-1], bool(class_token))}
            kept = layer_options(chosen)
            words += [f"--{'.'.join(places[name])}={chosen[name]}" for name in chosen if name in places]
        elif part == "pooling":
            kept = {name: value for name, value in options.items() if _fits(named[-1], {name: value})}
        else:
            kept = {name: value for name, value in options.items() if name == "pretrained" and TIMM in named[-1]}
        words += [f"--model.{part}_options", json.dumps(kept)]
    # After the files, whose options they replace, and before the flags, which may set others.
    last = max((place for place, word in enumerate(arguments) if word.startswith("--config")), default=-1)
    first = 0 if last < 0 else last + (1 if "=" in arguments[last] else 2)
    return [*arguments[:first], *words, *arguments[first:]]


def _fits(pooling: str, options: dict[str, Any]) -> bool:
    try:
        check_options(pooling, options)
    except ValueError:
        return False
    return True


def instantiate(parser: TeachingParser, namespace: Any) -> Any:
    """Build the dataclasses of parsed arguments.

    Raises:
        SystemExit: with status 2 if one of them refuses its values.
    """
    try:
        # jsonargparse has renamed it.
        return (parser.instantiate if hasattr(parser, "instantiate") else parser.instantiate_classes)(namespace)
    except ValueError as error:
        parser.error(str(error))


def as_config(kind: type[Config], parser: TeachingParser, namespace: Any) -> Config:
    """Build a configuration whose fields are options of a parser; raises as `instantiate`."""
    made = instantiate(parser, namespace)
    return kind(**{each.name: made[each.name] for each in dataclasses.fields(kind)})  # type: ignore[arg-type]


def finetuned(run: str) -> TrainConfig:
    """Return the configuration that goes on from a finished run with the whole network."""
    folder = Path(run).expanduser().resolve()
    config = with_whole_network(read_config(folder / "config.yaml"))
    config.start_from, config.head.steps, config.output.folder = str(folder), 0, None
    return config


def values_of(flag: str, arguments: Sequence[str]) -> list[str]:
    """Find the values of an option before anything is parsed, because defaults depend on it.

    Example:
        >>> values_of("--preset", ["--preset", "folder", "--preset=glyphs"])
        ['folder', 'glyphs']
    """
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith(f"{flag}=") else [word])]
    return [value for word, value in pairwise([*words, ""]) if word == flag]


def read_yaml(path: str | Path) -> Any:
    """Read a YAML file."""
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error


def _files(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Read the files of ``--config``, those that there are, in their order."""
    contents = [read_yaml(path) for path in values_of("--config", arguments) if Path(path).is_file()]
    return [content for content in contents if isinstance(content, dict)]


def _preset_of(arguments: Sequence[str]) -> str:
    """Find the preset before anything else is read, because it sets the defaults."""
    name = DEFAULT
    for content in _files(arguments):
        name = content.get("preset", name)
    named = values_of("--preset", arguments)
    if len(named) > 1:
        raise ValueError(f"a run starts from one preset, got --preset {' and --preset '.join(named)}")
    return named[0] if named else name


def plain(config: Any) -> dict[str, Any]:
    """Return a configuration as dictionaries, lists, numbers and strings."""

    def without_tuples(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without_tuples(each) for name, each in value.items()}
        return [without_tuples(each) for each in value] if isinstance(value, tuple | list) else value

    return without_tuples(dataclasses.asdict(config))


def as_yaml(config: TrainConfig) -> str:
    """Write a configuration as YAML that `read_config` and ``--config`` read."""
    return yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)


def read_config(path: str | Path) -> TrainConfig:
    """Read a configuration that a run has written.

    Raises:
        ValueError: if there is no such file, or it is not such a configuration.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no {path}; expected the config.yaml of a run")
    parser = train_parser()
    parser.exit_on_error = False
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "features" not in content and content.get("model", {}).get("freeze") == "all":
            # Version 0.1 trained every head on images.
            content["features"] = {"enabled": False}
        return as_config(TrainConfig, parser, parser.parse_object(content))
    except Exception as error:  # whatever a damaged file makes the parser raise
        raise ValueError(f"{path} is not the configuration of a run: {error}") from error
