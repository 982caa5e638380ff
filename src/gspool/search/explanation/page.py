"""Write an explanation as JSON, and as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gspool.search.explanation.figure import explanation_png
from gspool.search.explanation.overlay import css_colour
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.search.explanation.image import Explanation
    from gspool.search.explanation.shared import Shared

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
img { max-width: 100%; height: auto; } table { border-collapse: collapse; }
th, td { padding: .25rem .9rem; border-bottom: 1px solid #ccc; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.mark { white-space: nowrap; }
.colour { display: inline-block; width: .9em; height: .9em; border-radius: 50%; vertical-align: -.1em; }
@media (prefers-color-scheme: dark) { body { background: #16181d; color: #ddd; } th, td { border-color: #444; } }
"""


def whole_page(title: str, body: str) -> str:
    """Return a page with its style; ``body`` is HTML, ``title`` is text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
        f"{body}\n<p>Written by gspool {__version__}.</p></body></html>\n"
    )


def inline_image(content: bytes, alt: str, kind: str = "png") -> str:
    """Return an image tag that carries its picture."""
    data = base64.b64encode(content).decode()
    return f'<img alt="{html.escape(alt, quote=True)}" src="data:image/{kind};base64,{data}">'


def colour_mark(prototype: int) -> str:
    """Return a dot in the colour of a prototype, and its number."""
    spot = f'<span class="colour" style="background:{css_colour(prototype)}"></span>'
    return f'<span class="mark">{spot} {prototype}</span>'


def explanation_page(
    names: Sequence[str], explanations: Sequence[Explanation], shared: Shared | None = None, top: int = 8
) -> str:
    """Return the pictures and numbers of explanations as one HTML page."""
    parts = [inline_image(explanation_png(names, explanations, shared, top), "where the model looks")]
    for name, explanation in zip(names, explanations, strict=True):
        parts.append(
            f"<h2>{html.escape(name)}</h2>"
            f"<p>Entropy of the weights {explanation.entropy:.4f}: 1 is average pooling, 0 a single place.</p>"
        )
        if explanation.attributes is not None:
            rows = explanation.most_used(top)
            parts.append(
                html_table(("prototype", "share"), [(colour_mark(row), f"{value:.1%}") for row, value in rows])
            )
    if shared is not None:
        parts.append(f"<h2>What they share</h2><p>Overlap {shared.overlap:.1%}, cosine {shared.similarity:.3f}.</p>")
        rows_of_shares = [
            (colour_mark(number), f"{share:.1%}", f"{first:.1%}", f"{second:.1%}")
            for number, share, first, second in shared.rows()
        ]
        heads = ("prototype", "shared", html.escape(names[0]), html.escape(names[1]))
        parts.append(html_table(heads, rows_of_shares))
    return whole_page("Where the model looks", "\n".join(parts))


def explanation_figures(
    names: Sequence[str], explanations: Sequence[Explanation], shared: Shared | None = None
) -> dict[str, Any]:
    """Return explanations as numbers, lists and text, ready for JSON."""
    figures: dict[str, Any] = {
        "images": [
            {
                "image": name,
                "grid": list(explanation.weights.shape),
                "entropy": explanation.entropy,
                "weights": explanation.weights.tolist(),
                "owners": None if explanation.owners is None else explanation.owners.tolist(),
                "attributes": None if explanation.attributes is None else explanation.attributes.tolist(),
            }
            for name, explanation in zip(names, explanations, strict=True)
        ]
    }
    if shared is not None:
        figures["shared"] = {
            "overlap": shared.overlap,
            "similarity": shared.similarity,
            "prototypes": [
                {"prototype": number, "share": share, "first": first, "second": second}
                for number, share, first, second in shared.rows()
            ],
        }
    return figures


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; heads and cells are HTML."""
    head = "".join(f"<th>{head}</th>" for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
