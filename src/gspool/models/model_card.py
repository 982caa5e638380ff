"""The page that goes with a saved model: how to use it, what it is made of, how well it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.models.pixels import Pixels
    from gspool.models.pretrained import Settings

HEADER = """---
library_name: gspool
pipeline_tag: image-feature-extraction
tags:
- gspool
- image-retrieval
- metric-learning
---
{generated}

# {title}

An image embedding: an RGB picture in, a unit vector of {dim} numbers out. Pictures of the same kind lie close together.

## Use

```python
from PIL import Image
from gspool import Embedder

model = Embedder.from_pretrained("path/to/this/folder"{own})
image = model.pixels.transform()(Image.open("picture.jpg"))
vector = model(image[None])  # [1, {dim}], length 1: compare vectors by their dot product
```

## Settings

| setting | value |
|---|---|
{settings}

## Preprocessing

{preprocessing}

## Figures

{figures}

## Licence

Not stated. Weights carry the terms of the images and of the backbone they were trained from: add `license:` to the head
of this page when you share them.

Written with gspool {version}.
"""


def text(settings: Settings, pixels: Pixels, out_dim: int, metrics: Mapping[str, float]) -> str:
    """Write the model card."""
    from gspool.models.pretrained import GENERATED

    backbone = settings.backbone or "a backbone of its maker's own"
    rows = {
        "backbone": settings.backbone or backbone,
        "backbone options": _plain(settings.backbone_options),
        "pooling": settings.pooling,
        "pooling options": _plain(settings.pooling_options),
        "embedding": f"{out_dim} numbers",
        "frozen in training": settings.freeze,
    }
    size = f"{pixels.crop[0]} x {pixels.crop[1]}"
    preprocessing = (
        f"`model.pixels.transform()` resizes the shorter side to {pixels.resize} ({pixels.interpolation}) and crops "
        f"{size} pixels from the middle. "
    )
    network = f"{pixels.channel_order}, {pixels.range}, less {pixels.mean}, divided by {pixels.std}"
    if settings.normalise:
        preprocessing += (
            f"The model takes RGB, uint8 or floating in [0, 1], and makes of it what its backbone saw: {network}."
        )
    else:
        preprocessing += (
            f"The model expects pixels as its backbone saw them: {network}; use `transform(normalise=True)`."
        )
    return HEADER.format(
        generated=GENERATED,
        title=f"{settings.pooling} on {backbone}, {out_dim}-D",
        dim=out_dim,
        own="" if settings.backbone else ", backbone=your_backbone",
        settings="\n".join(f"| {name} | {value} |" for name, value in rows.items()),
        preprocessing=preprocessing,
        figures=_table(metrics) if metrics else "None were given when the model was saved.",
        version=__version__,
    )


def _plain(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items()) or "as they come"


def _table(metrics: Mapping[str, float]) -> str:
    rows = "\n".join(f"| {name} | {value:.4g} |" for name, value in metrics.items())
    return f"| metric | value |\n|---|---|\n{rows}"
