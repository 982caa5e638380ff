"""Glyphs, a synthetic data set that needs no download, drawn with the fonts of matplotlib.

A small version of Cifar Collage (Sec. 5.1) for a CPU: a class is a letter, an image a 2x2 collage of one drawing of it
and three symbols from a set that all classes share. Letters and symbols of the splits are disjoint. Average pooling
mixes the symbols into the embedding; a pooling layer that selects can ignore them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from gspool.data.glyph_alphabet import LETTERS, SYMBOLS, glyph_masks
from gspool.data.glyph_collage import Distortion, draw_collages
from gspool.data.image_set import SPLITS, ImageSet, Split
from gspool.data.image_source import ArrayImages
from gspool.data.seeds import checked_seed
from gspool.data.splits import shuffled

# Classes and symbols of each split, of 454 letters and 306 symbols.
CLASSES: dict[Split, int] = {"train": 200, "validation": 154, "test": 100}
DISTRACTORS: dict[Split, int] = {"train": 154, "validation": 50, "test": 102}
IMAGES_PER_CLASS: dict[Split, int] = {"train": 60, "validation": 20, "test": 30}


class Characters(NamedTuple):
    """The classes of a split, and the distractors that all its images share."""

    letters: list[str]
    symbols: list[str]


def characters_of(split: Split, seed: int = 0) -> Characters:
    """Return the letters and symbols of a split; no character belongs to two splits.

    Example:
        >>> letters, symbols = characters_of("test")
        >>> len(letters), len(symbols), set(letters) & set(characters_of("train").letters)
        (100, 102, set())
    """
    chosen = []
    for alphabet, shares in ((LETTERS, CLASSES), (SYMBOLS, DISTRACTORS)):
        order = shuffled(alphabet, seed)
        start = sum(shares[earlier] for earlier in SPLITS[: SPLITS.index(split)])
        chosen.append([alphabet[row] for row in sorted(order[start : start + shares[split]])])
    return Characters(*chosen)


def glyphs(
    split: Split,
    *,
    size: int = 64,
    images_per_class: int | None = None,
    seed: int = 0,
    distortion: Distortion | None = None,
    background: Literal["symbols", "none"] = "symbols",
) -> ImageSet:
    """Draw glyph collages: 200 classes to train, 154 to validate, 100 to test; the seed determines every pixel.

    Args:
        split: which letters and symbols, and which drawings of them.
        size: side of the image in pixels.
        images_per_class: 60, 20 and 30 for the three splits unless given.
        seed: of the assignment of characters to splits and of every drawing.
        distortion: the random distortion of drawings, see `Distortion`.
        background: ``none`` draws the letter alone and over the whole image, an upper bound for any pooling.

    Raises:
        ValueError: if the size is below 8 pixels, the number of images below 1, the background unknown, or the seed out
            of range.

    Example:
        >>> letters = glyphs("test", images_per_class=2)
        >>> letters
        glyphs/test: 200 images of 100 classes
        >>> image, label = letters[0]
        >>> image.dtype, tuple(image.shape), len(letters.class_names[label])
        (torch.uint8, (3, 64, 64), 1)
    """
    per_class = IMAGES_PER_CLASS[split] if images_per_class is None else images_per_class
    if size < 8:
        raise ValueError(f"size is the side of a collage of 2 x 2 glyphs and must be at least 8 pixels, got {size}")
    if per_class < 1:
        raise ValueError(f"images_per_class must be at least 1, got {per_class}")
    if background not in ("symbols", "none"):
        raise ValueError(f"background is 'symbols' or 'none', got {background!r}")
    checked_seed(seed)
    letters, symbols = characters_of(split, seed)
    generator = torch.Generator().manual_seed(seed * len(SPLITS) + SPLITS.index(split))
    labels = torch.arange(len(letters)).repeat_interleave(per_class)
    shown = labels[:, None]
    places = None
    if background == "symbols":
        places = torch.randint(4, (len(labels),), generator=generator)
        shown = len(letters) + torch.randint(len(symbols), (len(labels), 4), generator=generator)
        shown[torch.arange(len(labels)), places] = labels
    # Masks of the size of a tile, but not below 16 pixels, where they would lose the shape of the glyph.
    side = size if background == "none" else size // 2
    masks = glyph_masks([*letters, *symbols], max(side, 16))
    pixels = draw_collages(masks, shown, size, distortion or Distortion(), generator)
    return ImageSet(ArrayImages(pixels, "glyph"), labels, letters, name="glyphs", split=split, foreground=places)
