"""Map the exceptions of a command to an exit status and one line of error."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

# As a shell reports a program that SIGPIPE has ended.
BROKEN_PIPE = 141


class WrongArgumentsError(ValueError):
    """Arguments that are wrong by themselves, whatever is on this machine; the exit status is 2."""


def refuse_below(least: int, **values: float | None) -> None:
    """Refuse options that are too small, by their names on the command line; None means not given.

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
    """Turn every ValueError in here into wrong arguments.

    Raises:
        WrongArgumentsError: instead of a ValueError.

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
    """Run a command and return its exit status: 0 done, 1 failed, 2 wrong arguments, 130 interrupted.

    Errors that a user can fix are printed in one line; those that only a programmer can keep their traceback. Where
    nobody reads what is printed any more, as after ``| head -1``, the status is 141, without a line.

    Args:
        name: of the command, ``gspool embed``.
        command: takes the arguments.
        arguments: the words after the name of the command.
        told: further exceptions to print in one line, besides ValueError, OSError and ImportError.

    Raises:
        ModuleNotFoundError: if a library is missing; the caller knows which extra installs it.

    Example:
        >>> run_told("gspool embed", lambda arguments: None, [])
        0
    """
    readable: tuple[type[Exception], ...] = (ValueError, OSError, ImportError, *told)
    try:
        command(arguments)
        # What is left would be written when Python ends, where nobody handles the error. A program that was started
        # without an output has no method to call.
        print(end="", flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError:
        raise
    except readable as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            return BROKEN_PIPE
        print(f"{name}: {in_words(error)}", file=sys.stderr)
        return 2 if isinstance(error, WrongArgumentsError) else 1
    return 0


def _is_unread() -> bool:
    """Return whether standard output is a pipe that nobody reads; what is still to be written is then lost."""
    try:
        output = sys.stdout.fileno()
    except (AttributeError, OSError):
        return False  # there is none, or it is no file
    # Not by a second write: nothing may be left of what could not be written.
    pipe = select.poll()
    pipe.register(output, 0)
    if not pipe.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def in_words(error: Exception) -> str:
    """Return the message of an error; of an OSError the reason and the path, without its number.

    Example:
        >>> in_words(PermissionError(13, "Permission denied", "/srv/runs"))
        'Permission denied: /srv/runs'
        >>> in_words(ConnectionError("the server does not answer"))
        'the server does not answer'
    """
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
