"""The page for people: drop a picture, see what is near it and why."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gradio as gr
from gradio.utils import get_upload_folder
from PIL import Image

from gspool.data import BrokenImageError
from gspool.search.explanation import shared_prototypes
from gspool.search.explanation.overlay import Scales, panels
from gspool.search.explanation.page import (
    PANELS_STYLE,
    THUMBNAIL,
    as_png,
    colour_mark,
    explanation_panels,
    inline_image,
    scale_bar,
)
from gspool.search.serve.lookup import MOST_NEIGHBOURS, UnknownPictureError

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from torch import Tensor

    from gspool.search.explanation import Explanation
    from gspool.search.model import Limits
    from gspool.search.serve.lookup import Lookup, Neighbour

View = Literal["pictures", "weights", "prototypes"]
# A click or Enter on a neighbour asks for the neighbours of that one.
CHOOSE = """
const choose = (event) => {
  const card = event.target.closest("[data-id]");
  if (card && (event.type === "click" || event.key === "Enter")) trigger("click", {id: Number(card.dataset.id)});
};
element.addEventListener("click", choose);
element.addEventListener("keydown", choose);
"""
STYLE = (
    PANELS_STYLE
    + """
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; }
.card { margin: 0; border: 1px solid var(--border-color-primary); border-radius: 8px; overflow: hidden; }
.card img { width: 100%; aspect-ratio: 1; object-fit: contain; display: block; background: #8881; }
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
.small { opacity: .7; font-size: 12px; }
"""
)
HINT = '<p class="nothing">Drop a picture to find similar ones.</p>'
# Pages hold every choice: beyond this many, labels are typed instead.
MOST_CHOICES = 2_000
# Questions that may wait; more are refused at once.
MOST_WAITING = 64
# The system's fonts: Gradio's own would be fetched from elsewhere.
FONT, FIXED_FONT = ("system-ui", "sans-serif"), ("ui-monospace", "monospace")


def create_page(lookup: Lookup, limits: Limits) -> gr.Blocks:
    """Return the page; ``limits`` are those of one upload."""
    # No telemetry; uploads are deleted after an hour.
    with gr.Blocks(title="gspool", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.HTML(
            f"<h1>Search by image</h1><p>{len(lookup.index):,} pictures, pooling layer "
            f'<code>{html.escape(lookup.model.settings.pooling)}</code>. <a href="/docs">HTTP interface</a></p>'
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=280, elem_id="question"):
                sources: Any = ["upload", "clipboard"]
                picture = gr.Image(type="filepath", sources=sources, label="Picture", height=280, elem_id="picture")
                # On the one object, not in a subclass: Gradio writes a file beside the source of every class it sees.
                picture.preprocess = partial(uploaded_pixels, lookup, limits)  # type: ignore[method-assign, assignment]
                with gr.Column(elem_id="settings"):
                    count = gr.Slider(1, MOST_NEIGHBOURS, value=12, step=1, label="Neighbours", elem_id="count")
                    threshold = gr.Slider(-1, 1, value=-1, step=0.01, label="Cosine at least", elem_id="threshold")
                    labels = label_choice(lookup)
                    views = ["pictures", "weights", "prototypes"]
                    view = gr.Radio(views, value="pictures", label="On the neighbours", elem_id="view")
            with gr.Column(scale=3, elem_id="answer"):
                found = gr.HTML(HINT, elem_id="found", js_on_load=CHOOSE)
                why = gr.HTML("", elem_id="why")
        # The number of the neighbour that is searched from, instead of the picture.
        chosen = gr.State(None)
        settings = [count, threshold, labels, view]

        def answer(query: Tensor | int | None, k: float, least: float, only: Sequence[str] | None, shown: View) -> Any:
            number = query if isinstance(query, int) else None
            return (*answered(lookup, query, int(k), least, only or (), shown), number)

        def answer_again(pixels: Tensor | None, number: int | None, *given: Any) -> Any:
            return answer(pixels if number is None else number, *given)

        def answer_from(event: gr.EventData, *given: Any) -> Any:
            return answer(int(event.id), *given)

        outputs = [found, why, chosen]
        # A newer question makes the answer to an older one worthless.
        how: dict[str, Any] = {
            "api_visibility": "private",
            "show_progress": "minimal",
            "trigger_mode": "always_last",
        }
        picture.change(answer, [picture, *settings], outputs, **how)
        changes = [count.release, threshold.release, labels.change, view.change]
        gr.on(changes, answer_again, [picture, chosen, *settings], outputs, **how)
        found.click(answer_from, settings, outputs, **how)
        # Those of now, not those of when the server began. Not by the queue: where its stream ends while a picture is
        # dropped, Gradio loses the answer to the picture.
        how_loaded: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}
        page.load(partial(label_choice, lookup), None, labels, **how_loaded)
    # No other function can be asked past the queue.
    return page.queue(max_size=MOST_WAITING, api_open=False)


def label_choice(lookup: Lookup) -> gr.Dropdown:
    """Return the choice of labels; without any it is hidden."""
    known = lookup.labels
    return gr.Dropdown(
        known[:MOST_CHOICES],
        multiselect=True,
        allow_custom_value=len(known) > MOST_CHOICES,
        label="Only these labels",
        visible=bool(known),
        elem_id="labels",
    )


def answered(
    lookup: Lookup,
    query: UInt8[Tensor, "3 H W"] | int | None,
    k: int,
    threshold: float,
    labels: Sequence[str],
    view: View,
) -> tuple[str, str]:
    """Return the two parts of the answer: what was found, and where the model looked; a gr.Error if there is none."""
    if query is None:
        return HINT, ""
    try:
        of = lookup.picture(query) if isinstance(query, int) else None
        neighbours = lookup.search(query, k, threshold, labels)
    except (ValueError, UnknownPictureError) as problem:
        raise gr.Error(html.escape(str(problem)), print_exception=False) from problem
    try:
        explanation = lookup.explain(lookup.pixels(query) if isinstance(query, int) else query)
    except ValueError as problem:
        # Such a model can still search; it has nothing to show beside the neighbours.
        return neighbours_html(lookup, neighbours, "pictures", None, of=of), f"<p>{html.escape(str(problem))}</p>"
    return neighbours_html(lookup, neighbours, view, explanation, of=of), explanation_html(explanation)


def uploaded_pixels(lookup: Lookup, limits: Limits, payload: Any) -> UInt8[Tensor, "3 H W"] | None:
    """Read an upload, instead of Gradio, which would decode up to 179 million pixels; a gr.Error if it is refused."""
    if payload is None:
        return None
    place = Path(payload.path or "").resolve()
    if not place.is_relative_to(Path(get_upload_folder()).resolve()) or not place.is_file():
        raise gr.Error("this picture is no longer here; drop it again", print_exception=False)
    try:
        with place.open("rb") as file:
            return lookup.read(file, limits)
    except BrokenImageError as problem:
        raise gr.Error(html.escape(str(problem)), title="Not read", print_exception=False) from problem


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
        if view == "pictures" or query is None:
            picture = lookup.thumbnail(neighbour.id, size)
        else:
            explanation = lookup.explain(lookup.pixels(neighbour.id))
            # The last panel is that of the prototypes, where there are any. All are on the scale of the query.
            drawn = panels(explanation, Scales.of([query]))
            picture = Image.fromarray(drawn[-1 if view == "prototypes" else 1][1])
            if query.attributes is not None:
                shared = shared_prototypes(query, explanation, top=3)
                marks = " ".join(colour_mark(number) for number in shared.prototypes.tolist())
                words += f'<span class="small">shared {shared.overlap:.0%}: {marks}</span><br>'
    except BrokenImageError as problem:
        # One file that was moved must not take the answer away.
        return f'<figure class="card"><figcaption>{words}{html.escape(str(problem))}</figcaption></figure>'
    return (
        f'<figure class="card" data-id="{neighbour.id}" tabindex="0" title="search from this picture">'
        f"{inline_image(as_png(picture, size, view != 'pictures'), neighbour.name)}"
        f'<figcaption>{words}<span class="small">{html.escape(neighbour.name)}</span></figcaption></figure>'
    )


def explanation_html(explanation: Explanation, top: int = 8) -> str:
    """Return where the model looked in the query, which prototype owns which place, and the share of each."""
    scales = Scales.of([explanation])
    return f"<h3>Where the model looks</h3>{explanation_panels(explanation, top, scales)}{scale_bar(scales)}"


def page_options() -> dict[str, Any]:
    """Return what `gr.mount_gradio_app` needs besides the page: looks, and no files of the server."""
    return {
        "theme": gr.themes.Default(font=FONT, font_mono=FIXED_FONT),
        "css": STYLE,
        "footer_links": [],
        "allowed_paths": [],
        "enable_monitoring": False,
        "ssr_mode": False,
        "mcp_server": False,
        "pwa": False,
        "show_error": True,
    }
