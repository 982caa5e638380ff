"""The named sources of a corpus: what they hold now, and which rows of a file they hold no more."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gspool.search.image_list import Listed, kind_of, list_images


class CorpusSources:
    """Folders, globs, CSV lists and files, each known by its absolute name; a file named by itself has none.

    Args:
        given: see `list_images`.
    """

    def __init__(self, given: Sequence[str | Path]) -> None:
        self.given = given
        self.names: list[str | None] = []
        self.lists: set[str] = set()
        # Whatever is missing below a folder is gone from it; of the others it is only known where they look.
        self.folders: list[str] = []
        self.looked_at: list[str] = []
        for source in given:
            place, kind = os.path.abspath(Path(source).expanduser()), kind_of(source)
            name: str | None = _text(place)
            if kind == "folder":
                self.folders.append(os.path.join(place, ""))
            elif kind == "list":
                self.lists.add(_text(place))
                self.looked_at.append("")
            elif kind == "file":
                name = None
                self.looked_at.append(os.path.join(os.path.dirname(place), ""))
            else:
                fixed = re.split(r"[*?\[]", place, maxsplit=1)[0]
                self.looked_at.append(os.path.join(os.path.dirname(fixed), ""))
            self.names.append(name)

    def pictures(self) -> Iterator[tuple[Listed, str | None]]:
        """Give the pictures, each with the name of the source that holds it."""
        for source, name in zip(self.given, self.names, strict=True):
            for listed in list_images([source], warn=False):
                yield listed, name

    def hold_no_more(self, path: str, source: str | None) -> bool:
        """Say of a picture that `pictures` did not give whether that is because it is gone.

        What came from a list is gone when the list names it no more. Anything else is gone when its file is, if it came
        from one of these sources or lies below one of these folders. Where nobody knows whence it came, it is enough
        that these sources look where it was.
        """
        if source in self.lists:
            return True
        places = self.folders if source is not None else [*self.folders, *self.looked_at]
        mine = path.startswith(tuple(places)) or (source is not None and source in self.names)
        return mine and is_missing(path)


def is_missing(path: str) -> bool:
    """Say whether there is no such file; one that cannot be reached today, on a failing disk say, is not missing."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def _text(path: str) -> str:
    """Names on disk may be any bytes; a table of vectors holds text."""
    return os.fsencode(path).decode(errors="backslashreplace")
