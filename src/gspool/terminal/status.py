"""From what a command raises to the exit status and the line that a person reads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class WrongArgumentsError(ValueError):
    """What was typed cannot be meant so, whatever lies on this machine; nothing has begun, and the status is 2."""


def refuse_below(least: int, **values: float | None) -> None:
    """Refuse options that are too small, by the names they have on the command line; None was not given.

    Raises:
        WrongArgumentsError: for the first of them.

    Example:
        >>> refuse_below(1, k=10, workers=None)
        >>> refuse_below(1, batch_size=0)
        Traceback (most recent call last):
        ...
        gspool.terminal.status.WrongArgumentsError: --batch_size must be at least 1, got 0
    """
    for name, value in values.items():
        if value is not None and value < least:
            raise WrongArgumentsError(f"--{name} must be at least {least}, got {value}")


@contextmanager
def checking_arguments() -> Iterator[None]:
    """Take what is refused in here for wrong arguments.

    Raises:
        WrongArgumentsError: in the place of any other ValueError.

    Example:
        >>> with checking_arguments():
        ...     int("a")
        Traceback (most recent call last):
        ...
        gspool.terminal.status.WrongArgumentsError: invalid literal for int() with base 10: 'a'
    """
    try:
        yield
    except ValueError as wrong:
        raise WrongArgumentsError(str(wrong)) from wrong


def run_told(
    name: str,
    command: Callable[[Sequence[str]], None],
    arguments: Sequence[str],
    told: tuple[type[Exception], ...] = (),
) -> int:
    """Run a command and give its exit status: 0 done, 1 failed, 2 wrong arguments, 130 interrupted.

    What a person can put right is told in a line; what only a programmer can keeps its traceback.

    Args:
        name: how the command is called, ``gspool embed``.
        command: takes the arguments.
        arguments: the words after the command's name.
        told: exceptions of the command's own that speak to a person, besides ValueError, OSError and ImportError.

    Raises:
        ModuleNotFoundError: if a library is missing; who called knows which extra brings it.

    Example:
        >>> run_told("gspool embed", lambda arguments: None, [])
        0
    """
    readable: tuple[type[Exception], ...] = (ValueError, OSError, ImportError, *told)
    try:
        command(arguments)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError:
        raise
    except readable as error:
        print(f"{name}: {in_words(error)}", file=sys.stderr)
        return 2 if isinstance(error, WrongArgumentsError) else 1
    return 0


def in_words(error: Exception) -> str:
    """Say what went wrong; of what the operating system refused, the reason and the place without its number.

    Example:
        >>> in_words(PermissionError(13, "Permission denied", "/srv/runs"))
        'Permission denied: /srv/runs'
        >>> in_words(ConnectionError("the server does not answer"))
        'the server does not answer'
    """
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
