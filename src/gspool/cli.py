"""The command line: `gspool COMMAND`, each command a page of help and a function of the library."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gspool.version import __version__

PAGE = """gspool: Generalized Sum Pooling for PyTorch.

    gspool train        train an embedding model and evaluate it; with nothing else, on data that needs no download
    gspool evaluate     measure a trained model

    gspool COMMAND --help      a page about a command, with examples and every option
    gspool --version
"""
COMMANDS = ("train", "evaluate")
EXTRA = "this command needs more than torch; install it with: pip install 'gspool[train]'"


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
    try:
        # Each command brings libraries of its own, some of them slow to import.
        from gspool.training import commands
    except ModuleNotFoundError as error:
        print(f"gspool {command}: {error}; {EXTRA}", file=sys.stderr)
        return 1
    return commands.run(command, rest)


if __name__ == "__main__":
    sys.exit(main())
