"""The page for people: drop a picture, see what is near it and why."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.utils import get_upload_folder

from gspool.data import BrokenImageError
from gspool.search.serve.lookup import MOST_NEIGHBOURS, UnknownPictureError
from gspool.search.serve.results import STYLE, View, explanation_html, neighbours_html

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from torch import Tensor

    from gspool.search.images import Limits
    from gspool.search.serve.lookup import Lookup

# A click or Enter on a neighbour asks for the neighbours of that one.
CHOOSE = """
const choose = (event) => {
  const card = event.target.closest("[data-id]");
  if (card && (event.type === "click" || event.key === "Enter")) trigger("click", {id: Number(card.dataset.id)});
};
element.addEventListener("click", choose);
element.addEventListener("keydown", choose);
"""
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
            f'<code>{escape(lookup.model.settings.pooling)}</code>. <a href="/docs">HTTP interface</a></p>'
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=280, elem_id="question"):
                picture = picture_drop(lookup, limits, label="Picture", height=280, elem_id="picture")
                with gr.Column(elem_id="settings"):
                    count = gr.Slider(1, MOST_NEIGHBOURS, value=12, step=1, label="Neighbours", elem_id="count")
                    threshold = gr.Slider(-1, 1, value=-1, step=0.01, label="Cosine at least", elem_id="threshold")
                    labels = gr.Dropdown(
                        lookup.labels[:MOST_CHOICES],
                        multiselect=True,
                        allow_custom_value=len(lookup.labels) > MOST_CHOICES,
                        label="Only these labels",
                        visible=bool(lookup.labels),
                        elem_id="labels",
                    )
                    view = gr.Radio(
                        ["pictures", "weights", "prototypes"],
                        value="pictures",
                        label="On the neighbours",
                        elem_id="view",
                    )
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
    return page.queue(max_size=MOST_WAITING)


def answered(
    lookup: Lookup,
    query: UInt8[Tensor, "3 H W"] | int | None,
    k: int,
    threshold: float,
    labels: Sequence[str],
    view: View,
) -> tuple[str, str]:
    """Return the two parts of the answer: what was found, and where the model looked.

    Raises:
        gr.Error: with a message for the page, if the question has no answer.
    """
    if query is None:
        return HINT, ""
    try:
        of = lookup.picture(query) if isinstance(query, int) else None
        neighbours = lookup.search(query, k, threshold, labels)
    except (ValueError, UnknownPictureError) as problem:
        raise gr.Error(escape(str(problem)), print_exception=False) from problem
    try:
        explanation = lookup.explain(lookup.pixels(query) if isinstance(query, int) else query)
    except ValueError as problem:
        # Such a model can still search; it has nothing to show beside the neighbours.
        return neighbours_html(lookup, neighbours, "pictures", None, of=of), f"<p>{escape(str(problem))}</p>"
    return neighbours_html(lookup, neighbours, view, explanation, of=of), explanation_html(explanation)


def picture_drop(lookup: Lookup, limits: Limits, **options: Any) -> gr.Image:
    """Return an image input whose value reaches functions as the pixels that the model sees, or not at all."""
    drop = gr.Image(type="filepath", sources=["upload", "clipboard"], **options)
    # On the one object, not in a subclass: Gradio writes a file beside the source of every class it sees.
    drop.preprocess = partial(uploaded_pixels, lookup, limits)  # type: ignore[method-assign, assignment]
    return drop


def uploaded_pixels(lookup: Lookup, limits: Limits, payload: Any) -> UInt8[Tensor, "3 H W"] | None:
    """Read an upload, instead of Gradio, which would decode up to 179 million pixels.

    Raises:
        gr.Error: with a message for the page, if it is refused.
    """
    if payload is None:
        return None
    place = Path(payload.path or "").resolve()
    if not place.is_relative_to(Path(get_upload_folder()).resolve()) or not place.is_file():
        raise gr.Error("this picture is no longer here; drop it again", print_exception=False)
    try:
        with place.open("rb") as file:
            return lookup.read(file, limits)
    except BrokenImageError as problem:
        raise gr.Error(escape(str(problem)), title="Not read", print_exception=False) from problem


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
