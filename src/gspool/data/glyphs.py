"""Glyphs, a synthetic data set that needs no download, drawn with the fonts of matplotlib.

A small version of Cifar Collage (Sec. 5.1) for a CPU: a class is a letter, an image a 2x2 collage of one drawing of it
and three symbols from a set that all classes share. Letters and symbols of the splits are disjoint. Average pooling
mixes the symbols into the embedding; a pooling layer that selects can ignore them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch.nn import functional as F

from gspool.data.glyph_alphabet import LETTERS, SYMBOLS, glyph_masks
from gspool.data.image_set import SPLITS, ImageSet, Split
from gspool.data.image_source import ArrayImages
from gspool.data.splits import checked_seed, shuffled

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt8
    from torch import Generator, Tensor

# Classes and symbols of each split, of 454 letters and 306 symbols.
CLASSES: dict[Split, int] = {"train": 200, "validation": 154, "test": 100}
DISTRACTORS: dict[Split, int] = {"train": 154, "validation": 50, "test": 102}
IMAGES_PER_CLASS: dict[Split, int] = {"train": 60, "validation": 20, "test": 30}
# Large enough to keep the passes over memory few, small enough (64 MB at 64 px) for any machine.
COLLAGES_AT_ONCE = 1024


@dataclass(frozen=True)
class Distortion:
    """The random distortion of a glyph; every amount is drawn independently for every tile."""

    rotation: float = 18.0
    """Largest rotation to either side, in degrees."""
    scale: tuple[float, float] = (0.75, 1.1)
    """Side of the glyph relative to the side of its tile."""
    shear: float = 0.15
    """Largest shear to either side, as a slope."""
    shift: float = 0.1
    """Largest shift in each direction, relative to the side of the tile."""
    paper: tuple[float, float] = (0.0, 0.35)
    """Grey level of the background, 0 black to 1 white."""
    ink: tuple[float, float] = (0.35, 0.65)
    """How much lighter than its background a glyph is."""
    noise: float = 0.08
    """Standard deviation of the pixel noise."""


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
    masks = glyph_masks("".join(letters + symbols), max(side, 16))
    pixels = draw_collages(masks, shown, size, distortion or Distortion(), generator)
    return ImageSet(ArrayImages(pixels, "glyph"), labels, letters, name="glyphs", split=split, foreground=places)


def uniform(low: float, high: float, shape: tuple[int, ...], generator: Generator) -> Float[Tensor, "*shape"]:
    """Draw uniformly between two bounds."""
    return low + (high - low) * torch.rand(shape, generator=generator)


def affine_maps(count: int, distortion: Distortion, generator: Generator) -> Float[Tensor, "T 2 3"]:
    """Draw affine maps from tile to mask coordinates, both in [-1, 1] (rotation, shear, scale, shift)."""
    angle = uniform(-distortion.rotation, distortion.rotation, (count,), generator) * (math.pi / 180)
    scale = uniform(*distortion.scale, (count,), generator)
    slant = uniform(-distortion.shear, distortion.shear, (count,), generator)
    shift = uniform(-2 * distortion.shift, 2 * distortion.shift, (count, 2), generator)
    cosine, sine = angle.cos() / scale, angle.sin() / scale
    linear = torch.stack((cosine + slant * sine, slant * cosine - sine, sine, cosine), dim=1).view(count, 2, 2)
    # A glyph shifted by `shift` is looked up in the mask at the opposite offset.
    return torch.cat((linear, -linear @ shift[:, :, None]), dim=2)


def draw_tiles(
    masks: UInt8[Tensor, "T S S"], side: int, distortion: Distortion, generator: Generator
) -> Float[Tensor, "T P P"]:
    """Draw one tile of ``side`` pixels for each mask, in grey levels from 0 to 1, without noise."""
    count = len(masks)
    maps = affine_maps(count, distortion, generator)
    places = F.affine_grid(maps, [count, 1, side, side], align_corners=False)
    glyphs = F.grid_sample(masks[:, None].float() / 255, places, align_corners=False)[:, 0]
    paper = uniform(*distortion.paper, (count, 1, 1), generator)
    ink = uniform(*distortion.ink, (count, 1, 1), generator)
    return paper + ink * glyphs


def draw_collages(
    masks: UInt8[Tensor, "K F S S"],
    characters: Int[Tensor, "N T"],
    size: int,
    distortion: Distortion,
    generator: Generator,
) -> UInt8[Tensor, "N 1 H W"]:
    """Draw square collages of T = 1, 4, 9, ... tiles; ``characters`` holds the mask of every tile, row by row.

    Each tile has its own font, distortion and grey level.
    """
    across = math.isqrt(characters.shape[1])
    collages = torch.empty(len(characters), 1, size, size, dtype=torch.uint8)
    # Where the tiles do not fill the size evenly, all are drawn a pixel larger and the picture is cropped.
    side = -(-size // across)
    for start in range(0, len(characters), COLLAGES_AT_ONCE):
        block = characters[start : start + COLLAGES_AT_ONCE]
        faces = torch.randint(masks.shape[1], block.shape, generator=generator)
        tiles = draw_tiles(masks[block.flatten(), faces.flatten()], side, distortion, generator)
        rows = tiles.view(-1, across, across, side, side).permute(0, 1, 3, 2, 4)
        grey = rows.reshape(len(block), across * side, across * side)[:, :size, :size]
        grey = grey + distortion.noise * torch.randn(grey.shape, generator=generator)
        collages[start : start + len(block), 0] = (grey.clamp(0, 1) * 255).round().to(torch.uint8)
    return collages
