"""The page for people: drop a picture, see what is near it and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr

from gspool.search.page_results import STYLE, View, explanation_html, neighbours_html
from gspool.search.page_upload import picture_drop
from gspool.search.serve_lookup import MOST_NEIGHBOURS

if TYPE_CHECKING:
    from PIL.Image import Image

    from gspool.search.serve_lookup import Lookup
    from gspool.search.upload import UploadLimits

HINT = '<p class="nothing">Drop a picture, and what is near it appears here.</p>'
# Pages hold every choice: beyond this many a label is typed instead.
MOST_CHOICES = 2_000
# The system's fonts: Gradio's own would be fetched from elsewhere.
FONT, FIXED_FONT = ("system-ui", "sans-serif"), ("ui-monospace", "monospace")


def create_page(lookup: Lookup, limits: UploadLimits) -> gr.Blocks:
    """Make the page.

    Args:
        lookup: what answers.
        limits: of one upload.
    """
    # Nothing is reported to anybody; uploads are deleted after an hour.
    with gr.Blocks(title="gspool", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.Markdown(
            f"# Search by image\n{len(lookup.index):,} pictures, model with pooling "
            f"`{lookup.model.settings.pooling}`. [HTTP interface](/docs)"
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                picture = picture_drop(limits, label="Picture", height=280, elem_id="picture")
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
                    ["pictures", "weights", "prototypes"], value="pictures", label="On the neighbours", elem_id="view"
                )
            with gr.Column(scale=3):
                found = gr.HTML(HINT, elem_id="found")
                why = gr.HTML("", elem_id="why")

        def answer(
            image: Image | None, k: float, least: float, only: Sequence[str] | None, shown: View
        ) -> tuple[str, str]:
            return answered(lookup, image, int(k), least, only or (), shown)

        gr.on(
            [picture.change, count.release, threshold.release, labels.change, view.change],
            answer,
            inputs=[picture, count, threshold, labels, view],
            outputs=[found, why],
            api_visibility="private",
            show_progress="minimal",
            # A newer question makes the answer to an older one worthless.
            trigger_mode="always_last",
        )
    return page


def answered(
    lookup: Lookup, image: Image | None, k: int, threshold: float, labels: Sequence[str], view: View
) -> tuple[str, str]:
    """Give the two parts of the answer: what was found, and where the model looked.

    Raises:
        gr.Error: in words for the page, if the question has no answer.
    """
    if image is None:
        return HINT, ""
    try:
        neighbours = lookup.search(image, k, threshold, labels)
    except ValueError as problem:
        raise gr.Error(str(problem), print_exception=False) from problem
    try:
        explanation = lookup.explain(image)
    except ValueError as problem:
        # Such a model can still be searched with; it has nothing to show beside the neighbours.
        return neighbours_html(lookup, neighbours, "pictures", None), f"<p>{problem}</p>"
    return neighbours_html(lookup, neighbours, view, explanation), explanation_html(explanation)


def page_options() -> dict[str, Any]:
    """Give what `gr.mount_gradio_app` needs besides the page: looks, and nothing of the server's files."""
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
