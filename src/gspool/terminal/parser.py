"""Command-line arguments; errors name the right option or value."""

from __future__ import annotations

import operator
import re
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from jsonargparse import ArgumentParser, DefaultHelpFormatter
from jsonargparse.typing import restricted_number_type

from gspool.terminal.status import WrongArgumentsError

# The messages of jsonargparse for a value of the wrong type or out of range, which name the Python type.
MISFITS = (
    re.compile(r'Parser key "(?P<key>[^"]+)":\s.*(?:Got|Given) value: (?P<value>.*)', re.DOTALL),
    re.compile(r"""Parser key "(?P<key>[^"]+)":\s+Not of type \w+: (?:.*: ')?(?P<value>.*?)(?:'| does not.*)"""),
)
# Numbers within bounds, beside PositiveInt and the like of jsonargparse.
Share = restricted_number_type("Share", float, [(">", 0), ("<=", 1)])
Cosine = restricted_number_type("Cosine", float, [(">=", -1), ("<=", 1)])
BOUNDS = {operator.gt: "above", operator.ge: "of at least", operator.lt: "below", operator.le: "at most"}
PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}


class PageFormatter(DefaultHelpFormatter):
    """Help that keeps the line breaks of its description, for the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in text.strip("\n").splitlines())


class TeachingParser(ArgumentParser):
    """A parser whose errors are one line about the mistake and one about the remedy."""

    def __init__(self, prog: str, description: str, usage: str) -> None:
        super().__init__(
            prog=prog, description=description, usage=usage, formatter_class=PageFormatter, allow_abbrev=False
        )

    def describe(self, flag: str, metavar: str, text: str) -> None:
        """Replace the help of an option where that of jsonargparse is incomplete.

        Example:
            >>> parser = TeachingParser("gspool paint", "Paint.", "gspool paint [--colour NAME]")
            >>> _ = parser.add_argument("--colour", help="Path to a configuration file.")
            >>> parser.describe("--colour", "NAME", "red, green or blue.")
            >>> "--colour NAME" in parser.format_help(), "configuration" in parser.format_help()
            (True, False)
        """
        (action,) = (action for action in self._actions if flag in action.option_strings)
        action.metavar, action.help = metavar, text

    def refuse(self, given: Any, reason: str, *names: str) -> None:
        """Refuse options that would change nothing.

        Args:
            given: the parsed arguments.
            reason: why they would not, to follow the name of an option.
            names: the options, without their dashes.

        Raises:
            WrongArgumentsError: for the first that was given another value than its default.

        Example:
            >>> parser = TeachingParser("gspool paint", "Paint.", "gspool paint [--thick]")
            >>> _ = parser.add_argument("--thick", action="store_true")
            >>> parser.refuse(parser.parse_args(["--thick"]), "is of lines", "thick")
            Traceback (most recent call last):
            ...
            gspool.terminal.status.WrongArgumentsError: --thick is of lines; leave it out
        """
        for name in names:
            if given[name] != self.get_default(name):
                raise WrongArgumentsError(f"--{name} {reason}; leave it out")

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message with similar option names, and exit with status 2, without a page of usage.

        Raises:
            SystemExit: always, unless ``exit_on_error`` is set to False.
            ValueError: then.
        """
        if not self.exit_on_error:
            raise ValueError(message) from ex
        message = self._in_words(message)
        known = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        near: list[str] = []
        group = re.search(r"Group '(.+)' does not accept option '(.+)'", message)
        if group:
            near = get_close_matches(f"--{group[1]}.{group[2]}", known, n=1)
        elif message.startswith(("unrecognized arguments", "Key ", "Option ")):
            for word in re.findall(r"[\w.]+", message.partition(":")[2] or message):
                # Commands have the same settings under different sections: --backbone here, --model.backbone there.
                near += get_close_matches(f"--{word}", known, n=1, cutoff=0.8) or [
                    flag
                    for flag in known
                    if f"--{word}" in message and (f".{word}".endswith(f".{flag[2:]}") or flag.endswith(f".{word}"))
                ]
        hint = f"\ndid you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
        self.exit(2, f"{self.prog}: {message}{hint}\n{self.prog} --help lists every option.\n")
        raise SystemExit(2)

    def _in_words(self, message: str) -> str:
        found = next((found for each in MISFITS if (found := each.fullmatch(message))), None)
        if found is None:
            return message
        action = next((action for action in self._actions if action.dest == found["key"]), None)
        kind = kind_in_words(getattr(action, "_typehint", None))
        # Without plain words for the type, the message of the library is the best there is.
        flag = next(iter(getattr(action, "option_strings", ())), f"--{found['key']}")
        return message if kind is None else f"{flag} is {kind}, got {found['value']}"


def kind_in_words(kind: Any) -> str | None:
    """Describe the values that an option takes, from its type; None for types without a plain description.

    Example:
        >>> kind_in_words(Literal["fair", "conventional"]), kind_in_words(bool | None), kind_in_words(list[int])
        ('one of fair, conventional', 'true or false, or null', None)
        >>> kind_in_words(Share)
        'a number above 0 and at most 1'
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin is dict:
        return "names with values, such as {name: value}"
    if origin in (Union, UnionType, tuple):
        words = [kind_in_words(part) for part in parts]
        known = [word for word in words if word is not None]
        if len(known) < len(words):
            return None
        return f"[{', '.join(known)}]" if origin is tuple else ", or ".join(known)
    if hasattr(kind, "_restrictions"):
        bounds = " and ".join(f"{BOUNDS[compare]} {bound}" for compare, bound in kind._restrictions)
        return f"{PLAIN[int if issubclass(kind, int) else float]} {bounds}"
    return PLAIN.get(kind)
