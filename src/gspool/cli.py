"""The command line: `gspool COMMAND`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from gspool.terminal.signals import TERMINATED, TerminatedError, exit_on_signals
from gspool.version import __version__


class Command(NamedTuple):
    """The module of a command, what it does, and the extra of the installation that it needs."""

    module: str
    purpose: str
    extra: str


COMMANDS = {
    "train": Command("gspool.training.run", "train an embedding model and evaluate it (default: glyphs)", "train"),
    "compare": Command(
        "gspool.training.run", "find the best pooling layer for your images on a frozen backbone", "train"
    ),
    "evaluate": Command("gspool.training.run", "compute the retrieval metrics of a trained model", "train"),
    "embed": Command("gspool.search.commands", "embed images into a vector index", "search"),
    "search": Command("gspool.search.commands", "find the images most similar to an image", "search"),
    "explain": Command("gspool.search.commands", "show where a model looks and why two images match", "search"),
    "serve": Command("gspool.search.commands", "start a web page and an HTTP API for image search", "serve"),
    "export": Command("gspool.models.export_command", "export to torch.export, ONNX or the Hugging Face hub", "export"),
    "bench": Command("gspool.bench.command", "benchmark the pooling layers on this machine", "train"),
    "reproduce": Command("gspool.experiments.commands", "run an experiment of the paper", "train"),
    "report": Command("gspool.experiments.commands", "write the tables and figures of the experiments", "train"),
}
PAGE = "\n".join(
    (
        "gspool: Generalized Sum Pooling for PyTorch.\n",
        *(f"    gspool {name:12s} {command.purpose}" for name, command in COMMANDS.items()),
        "\n    gspool COMMAND --help      describe a command, with examples and all options",
        "    gspool --version\n",
    )
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 failed, 2 wrong arguments, 130 Ctrl-C, 143 SIGTERM.

    Example:
        >>> main(["--version"]) == 0
        gspool ...
        True
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(PAGE)
        return 0
    if words[0] == "--version":
        print(f"gspool {__version__}")
        return 0
    command, *rest = words
    if command not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(command, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print(f"gspool: there is no command {command!r}{hint}\n\n{PAGE}", file=sys.stderr)
        return 2
    found = COMMANDS[command]
    # Before torch is imported: on a CPU, fresh memory in small pages costs a training step as much as its arithmetic.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        # Each command imports its own libraries, some of them slow.
        with exit_on_signals(at_once=True):
            module = import_module(found.module)
        with exit_on_signals(), short_warnings():
            status: int = module.run(command, rest)
    except TerminatedError:
        return TERMINATED
    except ModuleNotFoundError as error:
        # Not a library: a bug of ours.
        if (error.name or "").partition(".")[0] == "gspool":
            raise
        missing = error.name or str(error)
        print(f"gspool {command} needs {missing}: pip install 'gspool[{found.extra}]'", file=sys.stderr)
        return 1
    return status


@contextmanager
def short_warnings() -> Iterator[None]:
    """Show a UserWarning without its line of source; other warnings, which are for programmers, do not change.

    Example:
        >>> with short_warnings():
        ...     warnings.formatwarning("3 images are left out", UserWarning, "sets.py", 49)
        'warning: 3 images are left out\\n'
    """
    usual = warnings.formatwarning

    def shown(message: Any, category: type[Warning], *place: Any, **more: Any) -> str:
        return f"warning: {message}\n" if category is UserWarning else usual(message, category, *place, **more)

    warnings.formatwarning = shown
    try:
        yield
    finally:
        warnings.formatwarning = usual


if __name__ == "__main__":
    sys.exit(main())
