"""Draw collages of glyphs from masks, in batches, deterministic for a given generator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from jaxtyping import Float, Int, UInt8
    from torch import Generator, Tensor

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
