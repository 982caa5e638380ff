"""Numbers with commas between, as options such as --seeds take them."""

from __future__ import annotations

from collections.abc import Sequence

from gspool.terminal.status import WrongArgumentsError


def numbers_of(text: str, what: str) -> tuple[int, ...]:
    """Read whole numbers from 0 on, each of them once; nothing where the text is empty.

    Args:
        text: what was typed, ``0,1,2``.
        what: what the numbers are, in the plural: ``seeds``, ``folds``.

    Raises:
        WrongArgumentsError: for what is no whole number, is below 0, or stands there twice; it is a ValueError.

    Example:
        >>> numbers_of("0,1,5", "seeds"), numbers_of("", "seeds")
        ((0, 1, 5), ())
    """
    if not text.strip():
        return ()
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError as wrong:
        raise WrongArgumentsError(
            f"{what} are whole numbers with commas between, such as 0,1,2, got {text!r}"
        ) from wrong
    if min(found) < 0:
        raise WrongArgumentsError(f"{what} are counted from 0, got {min(found)} in {text!r}")
    # The same run would stand in a mean twice, and make its deviation too small.
    refuse_twice(sorted(found), what, text)
    return found


def refuse_twice(found: Sequence[object], what: str, text: str) -> None:
    """Refuse what was typed as ``text`` where one of the things found in it, ``what`` in the plural, stands twice.

    Raises:
        WrongArgumentsError: with what stands there more than once; it is a ValueError.
    """
    twice = [each for each in dict.fromkeys(found) if found.count(each) > 1]
    if twice:
        raise WrongArgumentsError(
            f"{what} are given once each, got {', '.join(map(str, twice))} more than once in {text!r}"
        )
