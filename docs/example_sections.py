"""Show the examples of docstrings as code: headed "Example:" here, but "Examples:" for the parser of the API page."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class ExampleSections(Extension):
    """Rename the heading before the docstring is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Look at one module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
