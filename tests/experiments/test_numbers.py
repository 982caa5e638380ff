"""Numbers with commas between: what is read, and what is refused."""

from __future__ import annotations

import pytest

from gspool.experiments.numbers import numbers_of
from gspool.terminal.status import WrongArgumentsError


@pytest.mark.parametrize(
    ("text", "numbers"), [("", ()), (" ", ()), ("0", (0,)), ("3,1, 2", (3, 1, 2)), ("10,1", (10, 1))]
)
def test_numbers_are_read_in_the_order_they_are_written(text: str, numbers: tuple[int, ...]) -> None:
    assert numbers_of(text, "seeds") == numbers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b", "folds are whole numbers with commas between, such as 0,1,2, got 'a,b'"),
        ("1.5", "whole numbers"),
        ("0,,1", "whole numbers"),
        ("0;1", "whole numbers"),
        ("0,-1", "folds are counted from 0, got -1 in '0,-1'"),
        ("0,1,0,1,2", "folds are given once each, got 0, 1 more than once in '0,1,0,1,2'"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(WrongArgumentsError, match=message):
        numbers_of(text, "folds")
