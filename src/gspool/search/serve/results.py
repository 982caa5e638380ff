"""Show neighbours as cards, and where the model looked in the query, as HTML with its pictures inside."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from PIL import Image

from gspool.data import BrokenImageError
from gspool.search.explanation.figure import map_scales
from gspool.search.explanation.overlay import owners_over, weights_over
from gspool.search.explanation.page import (
    PANELS_STYLE,
    THUMBNAIL,
    as_png,
    colour_mark,
    explanation_panels,
    inline_image,
    scale_bar,
)
from gspool.search.explanation.shared import shared_prototypes

if TYPE_CHECKING:
    from gspool.search.explanation.image import Explanation
    from gspool.search.serve.lookup import Lookup, Neighbour

View = Literal["pictures", "weights", "prototypes"]
STYLE = (
    PANELS_STYLE
    + """
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
"""
)


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
        picture = lookup.thumbnail(neighbour.id, size) if explanation is None else _drawn(explanation, view, query)
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


def _drawn(explanation: Explanation, view: View, query: Explanation | None) -> Image.Image:
    """Draw the weights or prototypes of a neighbour on the scale of the query."""
    heat, taken = map_scales([query or explanation])
    if view == "prototypes" and explanation.owners is not None:
        return Image.fromarray(owners_over(explanation, scale=taken))
    return Image.fromarray(weights_over(explanation.image, explanation.weights, heat))


def explanation_html(explanation: Explanation, top: int = 8) -> str:
    """Return where the model looked in the query, which prototype owns which place, and the share of each."""
    scale = scale_bar(map_scales([explanation])[0])
    return f"<h3>Where the model looks</h3>{explanation_panels(explanation, top)}{scale}"
