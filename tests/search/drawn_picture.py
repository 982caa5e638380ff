"""Pictures for tests, each drawn from its own seed."""

from __future__ import annotations

import numpy as np
from PIL import Image


def draw_picture(path, seed: int, size=(48, 40)) -> None:
    """Write a picture of coloured noise, so that no two are alike."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.NEAREST).save(path)
