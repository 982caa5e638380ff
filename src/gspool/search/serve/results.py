"""Show neighbours as cards, and where the model looked in the query, as HTML with its pictures inside."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from PIL import Image, ImageOps

from gspool.data import BrokenImageError
from gspool.search.explanation.overlay import css_colour, owners_over, weights_over
from gspool.search.explanation.page import colour_mark, inline_image
from gspool.search.explanation.shared import shared_prototypes

if TYPE_CHECKING:
    from gspool.search.explanation.image import Explanation
    from gspool.search.serve.lookup import Lookup, Neighbour

View = Literal["pictures", "weights", "prototypes"]
THUMBNAIL = 224
STYLE = """
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; }
.card { margin: 0; border: 1px solid var(--border-color-primary); border-radius: 8px; overflow: hidden; }
.card img, .panel img { width: 100%; aspect-ratio: 1; object-fit: contain; display: block; background: #8881; }
.card figcaption { padding: 6px 8px; font-size: 13px; line-height: 1.35; overflow-wrap: anywhere; }
.card[data-id] { cursor: pointer; }
.card[data-id]:hover, .card[data-id]:focus { border-color: var(--color-accent); outline: none; }
.match { color: #1a9850; } .no.match { color: inherit; opacity: .7; }
/* On a phone: the picture, then what was found, then the settings. */
@media (max-width: 768px) {
  #question { display: contents; }
  .cards { grid-template-columns: repeat(auto-fill, minmax(120px, 1fr)); }
  #picture { order: 1; } #answer { order: 2; min-width: 100% !important; } #settings { order: 3; }
}
.score { font-variant-numeric: tabular-nums; font-weight: 600; }
.small { opacity: .7; font-size: 12px; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; }
.panel { margin: 0; text-align: center; }
.panel figcaption { font-size: 13px; padding: 4px; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 4px 10px; }
.bars { align-items: center; align-content: start; font-size: 13px; }
.bar { height: 12px; border-radius: 6px; }
.mark { white-space: nowrap; }
.colour { display: inline-block; width: .9em; height: .9em; border-radius: 50%; vertical-align: -.1em; }
"""


def neighbours_html(
    lookup: Lookup,
    neighbours: Sequence[Neighbour],
    view: View,
    query: Explanation | None,
    size: int = THUMBNAIL,
    of: Neighbour | None = None,
) -> str:
    """Return the pictures that were found as cards, plain or with weights or prototypes drawn over them.

    With an explanation of the query, cards name the prototypes that both share. ``of`` is the query, where it is a
    picture of the corpus.
    """
    if not neighbours:
        return '<p class="nothing">Nothing found: lower the threshold, or choose other labels.</p>'
    cards = "".join(_card(lookup, neighbour, view, query, size) for neighbour in neighbours)
    of_what = "" if of is None else f" to {html.escape(of.name)}" + (f" [{html.escape(of.label)}]" if of.label else "")
    return f'<h3>Nearest pictures{of_what}</h3><div class="cards">{cards}</div>'


def _card(lookup: Lookup, neighbour: Neighbour, view: View, query: Explanation | None, size: int) -> str:
    label = "" if neighbour.label is None else f"{html.escape(neighbour.label)}<br>"
    words = f'<span class="score">{neighbour.score:.3f}</span> {label}'
    if neighbour.match is not None:
        match = "match" if neighbour.match else "no match"
        words += f'<span class="{match}">{match}</span><br>'
    try:
        explanation = lookup.explain(lookup.pixels(neighbour.id)) if view != "pictures" and query is not None else None
        picture = lookup.thumbnail(neighbour.id, size) if explanation is None else _drawn(explanation, view)
    except BrokenImageError as problem:
        # One file that was moved must not take the answer away.
        return f'<figure class="card"><figcaption>{words}{html.escape(str(problem))}</figcaption></figure>'
    if query is not None and explanation is not None and query.attributes is not None:
        shared = shared_prototypes(query, explanation, top=3)
        marks = " ".join(colour_mark(number) for number in shared.prototypes.tolist())
        words += f'<span class="small">shared {shared.overlap:.0%}: {marks}</span><br>'
    words += f'<span class="small">{html.escape(neighbour.name)}</span>'
    return (
        f'<figure class="card" data-id="{neighbour.id}" tabindex="0" title="search from this picture">'
        f"{inline_image(as_png(picture, size, view != 'pictures'), neighbour.name)}"
        f"<figcaption>{words}</figcaption></figure>"
    )


def _drawn(explanation: Explanation, view: View) -> Image.Image:
    owned = view == "prototypes" and explanation.owners is not None
    return Image.fromarray(owners_over(explanation) if owned else weights_over(explanation.image, explanation.weights))


def explanation_html(explanation: Explanation, top: int = 8) -> str:
    """Return where the model looked in the query, which prototype owns which place, and the share of each."""
    panels = [
        ("as the model sees it", explanation.image.permute(1, 2, 0).numpy()),
        (f"weights, entropy {explanation.entropy:.2f}", weights_over(explanation.image, explanation.weights)),
    ]
    if explanation.owners is not None:
        panels.append(("prototypes", owners_over(explanation)))
    figures = "".join(
        f'<figure class="panel">{inline_image(as_png(Image.fromarray(pixels), THUMBNAIL, enlarge=True), title)}'
        f"<figcaption>{html.escape(title)}</figcaption></figure>"
        for title, pixels in panels
    )
    return f'<h3>Where the model looks</h3><div class="panels">{figures}{_bars(explanation, top)}</div>'


def _bars(explanation: Explanation, top: int) -> str:
    if explanation.attributes is None:
        return f"<p>{html.escape(explanation.missing[0].upper() + explanation.missing[1:])}.</p>"
    shares = explanation.most_used(top)
    largest = max(shares[0][1], 1e-12)
    rows = "".join(
        f'<span>{colour_mark(number)}</span><span class="bar" style="width:{100 * value / largest:.1f}%;'
        f'background:{css_colour(number)}"></span><span class="score">{value:.1%}</span>'
        for number, value in shares
    )
    return f'<div class="bars">{rows}</div>'


def as_png(picture: Image.Image, side: int, enlarge: bool = False) -> bytes:
    """Return a picture as PNG, its longer side at most ``side``; exactly that, with ``enlarge``."""
    larger = max(picture.size) > side
    if larger or enlarge:
        # Tokens have sharp edges; keep them in an enlarged map.
        method = Image.Resampling.LANCZOS if larger else Image.Resampling.NEAREST
        picture = ImageOps.contain(picture, (side, side), method)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
