"""Write an explanation as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image, ImageOps

from gspool.search.explanation.figure import short
from gspool.search.explanation.overlay import COLOURS, Panel, Scales, bar_colour, css_colour, panels, shared_panels
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.search.explanation import Explanation, Shared

THUMBNAIL = 224  # pixels of a panel
# Panels and bars of an explanation, also on the page of `gspool serve`; two panels beside each other fit on a phone.
PANELS_STYLE = """
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(240px, 45%), 1fr)); gap: 12px; }
.panel { margin: 0; text-align: center; }
.panel img { width: 100%; aspect-ratio: 1; object-fit: contain; display: block; background: #8881; }
.panel figcaption { font-size: 13px; padding: 4px; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 4px 10px; }
.bars { align-items: center; align-content: start; font-size: 13px; }
.bar { height: 12px; border-radius: 6px; }
.score { font-variant-numeric: tabular-nums; font-weight: 600; }
.mark { white-space: nowrap; }
.colour { display: inline-block; width: .9em; height: .9em; border-radius: 50%; vertical-align: -.1em; }
.scale { display: flex; align-items: center; gap: 8px; font-size: 13px; margin: 8px 0; }
.scale i { flex: 0 1 160px; min-width: 60px; height: 12px; border-radius: 6px; }
.caveat { border-left: 4px solid #e0a800; padding-left: .6rem; }
"""
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1, h2, figcaption { overflow-wrap: anywhere; }
img { max-width: 100%; height: auto; } table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .25rem .9rem; border-bottom: 1px solid #ccc; text-align: right; }
th:first-child, td:first-child { text-align: left; }
@media (max-width: 30rem) { body { margin: 1rem auto; } th, td { padding: .25rem .4rem; } }
@media (prefers-color-scheme: dark) { body { background: #16181d; color: #ddd; } th, td { border-color: #444; } }
"""


def whole_page(title: str, body: str) -> str:
    """Return a page with its style; ``body`` is HTML, ``title`` is text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{PANELS_STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
        f"{body}\n<p>Written by gspool {__version__}.</p></body></html>\n"
    )


def inline_image(content: bytes, alt: str, kind: str = "png") -> str:
    """Return an image tag that carries its picture."""
    data = base64.b64encode(content).decode()
    return f'<img alt="{html.escape(alt, quote=True)}" src="data:image/{kind};base64,{data}">'


def colour_mark(prototype: int, colour: str | None = None) -> str:
    """Return a dot in the colour of a prototype, unless another is given, and its number."""
    spot = f'<span class="colour" style="background:{colour or css_colour(prototype)}"></span>'
    return f'<span class="mark">{spot} {prototype}</span>'


def explanation_page(
    names: Sequence[str],
    explanations: Sequence[Explanation],
    shared: Shared | None = None,
    top: int = 8,
    grid: bool = False,
) -> str:
    """Return the pictures and numbers of explanations as one HTML page; the maps are those of `explanation_png`."""
    scales = Scales.of(explanations)
    parts = [scale_bar(scales)]
    for name, explanation in zip(names, explanations, strict=True):
        parts.append(f"<h2>{html.escape(name)}</h2>{explanation_panels(explanation, top, scales, grid)}")
    if shared is not None:
        parts.append(f"<h2>What they share</h2><p>Overlap {shared.overlap:.1%}, cosine {shared.similarity:.3f}.</p>")
        parts.append(f'<div class="panels">{_panels(shared_panels(names, explanations, shared, scales, grid))}</div>')
        rows = [
            (colour_mark(each["prototype"]), *(f"{each[name]:.1%}" for name in ("share", "first", "second")))
            for each in shared.figures()["prototypes"]
        ]
        parts.append(html_table(("prototype", "shared", *(html.escape(short(name, 12)) for name in names)), rows))
    return whole_page("Where the model looks", "\n".join(parts))


def explanation_panels(explanation: Explanation, top: int, scales: Scales, grid: bool = False) -> str:
    """Return the image, its weights, its prototypes and the ``top`` of its attributes side by side, as HTML."""
    caveat = "" if explanation.caveat is None else f'<p class="caveat">{_sentence(explanation.caveat)}</p>'
    return f'{caveat}<div class="panels">{_panels(panels(explanation, scales, grid))}{_bars(explanation, top)}</div>'


def scale_bar(scales: Scales) -> str:
    """Return the colours of the weights with their scale, as HTML."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    colours = ", ".join(to_hex(colormaps[COLOURS](step / 8)) for step in range(9))
    return (
        f'<div class="scale">0 <i style="background:linear-gradient(90deg, {colours})"></i> {scales.weights:.1f}'
        "<span>times the average weight</span></div>"
    )


def _panels(pictures: Sequence[Panel]) -> str:
    return "".join(
        f'<figure class="panel">{inline_image(as_png(Image.fromarray(pixels), THUMBNAIL, enlarge=True), title)}'
        f"<figcaption>{html.escape(title)}</figcaption></figure>"
        for title, pixels in pictures
    )


def _bars(explanation: Explanation, top: int) -> str:
    if explanation.attributes is None:
        return f"<p>{_sentence(explanation.missing)}</p>"
    shares = explanation.most_used(top)
    largest = max(shares[0][1], 1e-12)
    rows = "".join(
        f'<span>{colour_mark(number, colour)}</span><span class="bar" style="width:{100 * value / largest:.1f}%;'
        f'background:{colour}"></span><span class="score">{value:.1%}</span>'
        for number, value in shares
        for colour in [bar_colour(explanation, number)]
    )
    return f'<div class="bars">{rows}</div>'


def _sentence(text: str) -> str:
    return html.escape(f"{text[0].upper()}{text[1:]}.")


def as_png(picture: Image.Image, side: int, enlarge: bool = False) -> bytes:
    """Return a picture as PNG, its longer side at most ``side``; exactly that, with ``enlarge``."""
    if enlarge or max(picture.size) > side:
        picture = ImageOps.contain(picture, (side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; heads and cells are HTML."""
    head = "".join(f"<th>{head}</th>" for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
