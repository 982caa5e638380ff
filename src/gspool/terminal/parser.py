"""Arguments of the commands: a wrong name or value is answered with the right ones."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter


class PageFormatter(DefaultHelpFormatter):
    """Help whose description keeps its lines, examples above all."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in text.strip("\n").splitlines())


class TeachingParser(ArgumentParser):
    """A parser whose errors are a line about what is wrong and a line about what would be right."""

    def __init__(self, prog: str, description: str, usage: str) -> None:
        super().__init__(
            prog=prog, description=description, usage=usage, formatter_class=PageFormatter, allow_abbrev=False
        )

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Add near names to a message about a name, and leave with status 2, without a page of usage.

        Raises:
            SystemExit: always.
        """
        known = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        near: list[str] = []
        group = re.search(r"Group '(.+)' does not accept option '(.+)'", message)
        if group:
            near = get_close_matches(f"--{group[1]}.{group[2]}", known, n=1)
        elif message.startswith(("unrecognized arguments", "Key ", "Option ")):
            for word in re.findall(r"[\w.]+", message.partition(":")[2] or message):
                near += get_close_matches(f"--{word}", known, n=1, cutoff=0.8)
        hint = f"\ndid you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
        self.exit(2, f"{self.prog}: {message}{hint}\n{self.prog} --help lists every option.\n")
        raise SystemExit(2)
