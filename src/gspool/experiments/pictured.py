"""A picture in a section, with its caption under it."""

from __future__ import annotations


def pictured(file: str, seen: str, caption: str) -> str:
    """Write a picture of docs/images/ in Markdown: ``seen`` for who cannot see it, ``caption`` for everybody.

    Example:
        >>> print(pictured("mu.png", "MAP@R against mu", "Bars are deviations."))
        ![MAP@R against mu](images/mu.png)
        <BLANKLINE>
        *Bars are deviations.*
    """
    return f"![{seen}](images/{file})\n\n*{caption}*"
