"""What an exported file says about itself, so that a program without gspool can feed it rightly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.models.embedder import Embedder
    from gspool.models.export_graph import Input, Output

# The name under which the description lies in an ONNX file (metadata) and, with .json, in a .pt2 archive.
KEY = "gspool"
MEANING = {
    "embedding": "unit vectors; compare two by their dot product",
    "weights": "where the model looked: one number a place, summing to 1 over an image",
    "attributes": "how much of each prototype an image holds, summing to 1",
}


def describe(model: Embedder, outputs: Sequence[Output], kind: Input, size: tuple[int, int] | None) -> dict[str, Any]:
    """Describe an exported model: its settings, its input with the preprocessing before it, its outputs.

    Args:
        model: what was exported.
        outputs: the tensors that it gives, in their order.
        kind: the type of the images.
        size: height and width, or None for any.

    Example:
        >>> from gspool.models import Embedder
        >>> about = describe(Embedder("resnet20", pooling="gap", dim=8), ["embedding"], "uint8", None)
        >>> about["input"]["resize"], about["input"]["crop"], about["outputs"]
        (32, [32, 32], {'embedding': 'unit vectors; compare two by their dot product'})
    """
    pixels = model.pixels
    settings = model.settings._asdict()
    settings.pop("pixels")
    if kind == "uint8":
        values = "RGB bytes, 0 to 255; the model normalises"
    elif model.settings.normalise:
        values = "RGB, 0 to 1; the model normalises"
    else:
        values = (
            f"normalised by you: {pixels.channel_order}, {pixels.range}, less {list(pixels.mean)}, "
            f"divided by {list(pixels.std)}"
        )
    return {
        "gspool": __version__,
        "model": {**settings, "out_dim": model.out_dim},
        "input": {
            "name": "images",
            "type": kind,
            "axes": ["batch", "3", "height", "width"],
            "values": values,
            # The shorter side, then the middle: what the figures of the model were measured with.
            "resize": pixels.resize,
            "interpolation": pixels.interpolation,
            "crop": list(pixels.crop),
            "size": None if size is None else list(size),
        },
        "normalisation": pixels.as_dict(),
        "outputs": {name: MEANING[name] for name in outputs},
    }


def as_json(description: dict[str, Any]) -> str:
    """Write the description in one line."""
    return json.dumps(description, default=str)
