"""The page that goes with a saved model: how to use it, what it is made of, how well it does, where it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from gspool.models.model_card_page import LIMITS, PAGE, USE_ONNX
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.models.pixels import Pixels
    from gspool.models.settings import Settings

TASK = "image-feature-extraction"
UNNAMED = "not named"


class CardFacts(NamedTuple):
    """What a card tells and a model does not know by itself.

    ``metrics`` are figures in [0, 1] by name; ``data`` is what they were measured on, and what the model was trained
    for; ``licence`` is an identifier such as ``mit`` or ``cc-by-nc-4.0``.
    """

    metrics: Mapping[str, float] = {}
    data: str | None = None
    licence: str | None = None


def text(
    settings: Settings,
    pixels: Pixels,
    out_dim: int,
    metrics: Mapping[str, float] | None = None,
    *,
    data: str | None = None,
    licence: str | None = None,
    address: str = "path/to/this/folder",
    onnx: bool = False,
) -> str:
    """Write the model card: a head for programs, with the figures as the hub reads them, and a page for people.

    Args:
        settings: those of the model.
        pixels: its preprocessing.
        out_dim: the length of its vectors.
        metrics: figures by name.
        data: what it was trained for and measured on.
        licence: the terms it is shared under.
        address: what a reader passes to `Embedder.from_pretrained`.
        onnx: whether a model.onnx lies beside it.
    """
    from gspool.models.pretrained import GENERATED

    backbone = settings.backbone or "a backbone of its maker's own"
    rows = {
        "backbone": backbone,
        "backbone options": _plain(settings.backbone_options),
        "pooling": settings.pooling,
        "pooling options": _plain(settings.pooling_options),
        "embedding": f"{out_dim} numbers",
        "frozen in training": settings.freeze,
    }
    title = f"{settings.pooling} on {backbone}, {out_dim}-D"
    return PAGE.format(
        head=_head(title, CardFacts(metrics or {}, data, licence)),
        generated=GENERATED,
        title=title,
        dim=out_dim,
        address=address,
        own="" if settings.backbone else ", backbone=your_backbone",
        onnx=USE_ONNX if onnx else "",
        data=f"Trained for and measured on {data}." if data else "The data it was trained on was not named.",
        settings="\n".join(f"| {name} | {value} |" for name, value in rows.items()),
        preprocessing=_preprocessing(settings, pixels),
        figures=_table(metrics, data) if metrics else "None were given when the model was saved.",
        limits=LIMITS.format(crop=f"{pixels.crop[0]} x {pixels.crop[1]}"),
        licence=_licence(licence),
        version=__version__,
    )


def read_facts(path: str | Path) -> CardFacts:
    """Read the facts back from the head of a card.

    Raises:
        ValueError: if there is no such card, or its head is damaged.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from gspool.models import Embedder
        >>> with TemporaryDirectory() as folder:
        ...     _ = Embedder("resnet20", pooling="gap").save_pretrained(folder, metrics={"map@r": 0.25})
        ...     dict(read_facts(Path(folder) / "README.md").metrics)
        {'map@r': 0.25}
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no model card {path}; save the model again to write one")
    head: Any = ModelCard(path.read_text(encoding="utf-8"), ignore_metadata_errors=True).data
    results = head.eval_results or []
    names = [result.dataset_name for result in results if result.dataset_name != UNNAMED]
    licence = head.license if isinstance(head.license, str) else None
    metrics = {result.metric_type: float(result.metric_value) for result in results}
    return CardFacts(metrics, names[0] if names else head.get("trained_for"), licence)


def _head(title: str, facts: CardFacts) -> str:
    name = facts.data or UNNAMED
    results = [
        EvalResult(
            task_type=TASK,
            dataset_type=re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"),
            dataset_name=name,
            metric_type=metric,
            metric_value=float(value),
        )
        for metric, value in facts.metrics.items()
    ]
    # The hub asks for figures and a name together, and takes neither without the other.
    figures: dict[str, Any] = {"model_name": title, "eval_results": results} if results else {}
    if facts.data:
        figures["trained_for"] = facts.data
    head = ModelCardData(
        library_name="gspool",
        pipeline_tag=TASK,
        tags=["gspool", "image-retrieval", "metric-learning"],
        license=facts.licence,
        **figures,
    )
    return head.to_yaml()


def _preprocessing(settings: Settings, pixels: Pixels) -> str:
    cut = (
        f"`model.pixels.transform()` resizes the shorter side to {pixels.resize} ({pixels.interpolation}) and crops "
        f"{pixels.crop[0]} x {pixels.crop[1]} pixels from the middle. "
    )
    network = f"{pixels.channel_order}, {pixels.range}, less {pixels.mean}, divided by {pixels.std}"
    if settings.normalise:
        return (
            f"{cut}The model takes RGB, uint8 or floating in [0, 1], and makes of it what its backbone saw: {network}."
        )
    return f"{cut}The model expects pixels as its backbone saw them: {network}; use `transform(normalise=True)`."


def _plain(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items()) or "as they come"


def _table(metrics: Mapping[str, float], data: str | None) -> str:
    where = f"On {data}, on" if data else "On"
    rows = "\n".join(f"| {name} | {value:.4g} |" for name, value in metrics.items())
    return f"{where} the part that was held out of training.\n\n| metric | value |\n|---|---|\n{rows}"


def _licence(licence: str | None) -> str:
    carried = "Weights carry the terms of the images and of the backbone they were trained from"
    if licence is None:
        return f"Not stated. {carried}: add `license:` to the head of this page when you share them."
    return f"`{licence}`. {carried}; those hold as well."
