"""The command line: `gspool COMMAND`, each command a page of help and a function of the library."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import NamedTuple

from gspool.terminal.plain_warnings import warned_in_plain_words
from gspool.version import __version__


class Command(NamedTuple):
    """Where a command lives, what it does, and the extra of the installation that it needs."""

    module: str
    promise: str
    extra: str


COMMANDS = {
    "train": Command(
        "gspool.training.commands", "train an embedding model and evaluate it; with nothing else, on glyphs", "train"
    ),
    "compare": Command(
        "gspool.training.commands", "find the best pooling layer for your pictures on a frozen backbone", "train"
    ),
    "evaluate": Command("gspool.training.commands", "measure a trained model", "train"),
    "embed": Command("gspool.search.commands", "make vectors of pictures, as many as there are", "search"),
    "search": Command("gspool.search.commands", "find the pictures most like a picture", "search"),
    "explain": Command("gspool.search.commands", "show where a model looks, and what two pictures share", "search"),
    "serve": Command("gspool.search.commands", "a web page and an HTTP API to search with pictures", "serve"),
    "export": Command(
        "gspool.models.export_command", "a file for torch.export, ONNX or the Hugging Face hub", "export"
    ),
    "bench": Command("gspool.bench.command", "measure what pooling layers cost on this machine", "train"),
    "reproduce": Command("gspool.experiments.commands", "run a table or figure of the paper", "train"),
    "report": Command("gspool.experiments.commands", "write the pages of what has been reproduced", "train"),
}
PAGE = "\n".join(
    (
        "gspool: Generalized Sum Pooling for PyTorch.\n",
        *(f"    gspool {name:12s} {command.promise}" for name, command in COMMANDS.items()),
        "\n    gspool COMMAND --help      a page about a command, with examples and every option",
        "    gspool --version\n",
    )
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; give its exit status: 0 done, 1 failed, 2 wrong arguments, 130 interrupted by Ctrl-C.

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
    try:
        # Each command brings libraries of its own, some of them slow to import, at its start or when it needs them.
        with ended_at_once_by_ctrl_c():
            module = import_module(found.module)
        with warned_in_plain_words():
            status: int = module.run(command, rest)
    except ModuleNotFoundError as error:
        # Not a library: a fault of ours.
        if (error.name or "").partition(".")[0] == "gspool":
            raise
        missing = error.name or str(error)
        print(f"gspool {command} needs {missing}: pip install 'gspool[{found.extra}]'", file=sys.stderr)
        return 1
    return status


@contextmanager
def ended_at_once_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process while libraries are imported; commands answer it themselves once they run.

    An exception would not do: torch takes one that comes while it imports numpy for a missing numpy, and breaks later.
    """
    # What is ignored stays so, and only the main thread hears signals.
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        print("\ninterrupted", file=sys.stderr, flush=True)
        os._exit(130)

    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
