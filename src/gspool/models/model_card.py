"""The model card (README.md) of a saved model: its use, settings, figures and limits."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from gspool.models.pretrained import GENERATED
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.models.pixels import Pixels
    from gspool.models.pretrained import Settings

TASK = "image-feature-extraction"
UNNAMED = "not named"
LARGEST_CARD = 1_000_000  # bytes
PAGE = """---
{head}
---
{generated}

# {title}

An image embedding: an RGB image in, a unit vector of {dim} numbers out. Similar images have similar vectors.

## Use

```python
from PIL import Image
from gspool import Embedder

model = Embedder.from_pretrained("{address}"{own})
image = model.pixels.transform()(Image.open("picture.jpg"))
vector = model(image[None])  # [1, {dim}], length 1: compare vectors by their dot product
```
{onnx}
## Intended use

Image retrieval: search, grouping, near-duplicates, ranking by similarity. {data}

## Limits

- Similarity is what the training data defined. On images of another kind, measure before you rely on it:
  `gspool evaluate FOLDER --data.name folder --data.root IMAGES`.
- Near is not identical, and a dot product is not a probability. Choose a threshold on your own data.
- It was not made to identify people, nor for decisions about them.
- The vectors reflect what was frequent, rare or missing in the training images, and in those of the backbone.
- Figures hold for the preprocessing below, {crop} pixels from the centre; other sizes and crops give other vectors.

## Figures

{figures}

## Settings

| setting | value |
|---|---|
{settings}

## Preprocessing

{preprocessing}

## Licence

{licence}

Written with gspool {version}.
"""
USE_ONNX = """
Without PyTorch, `model.onnx` in this folder runs in ONNX Runtime; its metadata `gspool` describes input and outputs.
"""
TERMS = "Weights carry the terms of the images and of the backbone they were trained from"


class CardFacts(NamedTuple):
    """What a card states and a model does not know by itself.

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
    """Return the model card: a YAML head for programs, with the figures as the hub reads them, and a page for people.

    ``metrics``, ``data`` and ``licence`` are those of `CardFacts`; ``address`` is what a reader passes to
    `Embedder.from_pretrained`; ``onnx`` says whether a model.onnx is in the same folder.
    """
    backbone = settings.backbone or "a custom backbone"
    rows = {
        "backbone": backbone,
        "backbone options": _options(settings.backbone_options),
        "pooling": settings.pooling,
        "pooling options": _options(settings.pooling_options),
        "embedding": f"{out_dim} numbers",
        "frozen in training": settings.freeze,
    }
    title = f"{settings.pooling} on {backbone}, {out_dim}-D"
    crop = f"{pixels.crop[0]} x {pixels.crop[1]}"
    network = f"{pixels.channel_order}, {pixels.range}, minus {pixels.mean}, divided by {pixels.std}"
    takes = (
        f"The model takes RGB, uint8 or floating in [0, 1], and converts it to what its backbone expects: {network}."
        if settings.normalise
        else f"The model takes pixels as its backbone expects them: {network}; use `transform(normalise=True)`."
    )
    figures = "\n".join(f"| {_cell(name)} | {value:.4g} |" for name, value in (metrics or {}).items())
    measured = f"On {_cell(data)}, on" if data else "On"
    return PAGE.format(
        head=_head(title, CardFacts(metrics or {}, data, licence)),
        generated=GENERATED,
        title=title,
        dim=out_dim,
        address=address,
        own="" if settings.backbone else ", backbone=your_backbone",
        onnx=USE_ONNX if onnx else "",
        data=f"Trained for and measured on {_cell(data)}." if data else "The training data was not named.",
        crop=crop,
        settings="\n".join(f"| {name} | {_cell(value)} |" for name, value in rows.items()),
        preprocessing=(
            f"`model.pixels.transform()` resizes the shorter side to {pixels.resize} ({pixels.interpolation}) and "
            f"crops {crop} pixels from the centre. {takes}"
        ),
        figures=f"{measured} the part held out of training.\n\n| metric | value |\n|---|---|\n{figures}"
        if metrics
        else "None were given when the model was saved.",
        licence=f"Not stated. {TERMS}: add `license:` to the head of this page when you share them."
        if licence is None
        else f"`{_cell(licence)}`. {TERMS}; those hold as well.",
        version=__version__,
    )


def read_facts(path: str | Path) -> CardFacts:
    """Read the facts from the head of a card, which may come from anywhere: text is kept to one printable line.

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
    if path.stat().st_size > LARGEST_CARD:
        raise ValueError(f"the model card {path} has {path.stat().st_size:,} bytes, more than {LARGEST_CARD:,}")
    try:
        head: Any = ModelCard(path.read_text(encoding="utf-8"), ignore_metadata_errors=True).data
        results = head.eval_results or []
        names = [result.dataset_name for result in results if result.dataset_name != UNNAMED]
        metrics = {_line(result.metric_type): float(result.metric_value) for result in results}
        if not all(map(math.isfinite, metrics.values())):
            raise ValueError("a figure is not a finite number")
        return CardFacts(metrics, _line(names[0] if names else head.get("trained_for")), _line(head.license))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"the head of the model card {path} is damaged ({reason}); repair or delete it") from error


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
    # The hub requires figures and a name together.
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


def _options(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items()) or "defaults"


def _line(value: object) -> Any:
    """Return a text as one printable line of at most 200 characters; None for what is no text."""
    if not isinstance(value, str):
        return None
    return "".join(character for character in " ".join(value.split()) if character.isprintable())[:200] or None


def _cell(value: str) -> str:
    """Escape a text for a table of the page: no HTML, no further column."""
    return html.escape(value, quote=False).replace("|", "\\|")
