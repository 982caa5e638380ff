"""Draw butterflies among flowers: pictures for the notebooks of this folder, without a download."""

from __future__ import annotations

import math
import random
from itertools import permutations
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from gspool.models import create_backbone

WINGS = ["orangered", "orange", "deepskyblue", "navy", "purple", "black", "hotpink", "sienna", "turquoise"]
FLOWERS = ["white", "gold", "lightgreen", "hotpink", "deepskyblue", "orangered"]
# A kind of butterfly is the colours of its upper and lower wings. The order is mixed, so that any part has all colours.
KINDS = random.Random(0).sample(list(permutations(WINGS, 2)), 72)


def meadow(kind: tuple[str, str], draws: random.Random, size: int = 64) -> Image.Image:
    """Return a butterfly among four to nine flowers."""
    return _picture(kind, draws.choices(FLOWERS, k=draws.randint(4, 9)), 1.0, draws, size)


def close_up(kind: tuple[str, str], draws: random.Random, size: int = 32) -> Image.Image:
    """Return a butterfly that fills the picture, without flowers."""
    return _picture(kind, [], 2.0, draws, size)


def flower(colour: str, draws: random.Random, size: int = 32) -> Image.Image:
    """Return a flower that fills the picture."""
    return _picture(None, [colour], 3.0, draws, size)


def as_tensor(pictures: list[Image.Image]) -> torch.Tensor:
    """Return pictures of one size as floats [B, 3, H, W] from -1 to 1."""
    return torch.from_numpy(np.stack([np.asarray(each) for each in pictures])).permute(0, 3, 1, 2) / 127.5 - 1


def train_backbone(file: str) -> None:
    """Train a small network for some seconds, on pictures of one subject each, and write its weights."""
    torch.manual_seed(0)
    draws = random.Random(0)
    subjects = [[close_up(kind, draws) for _ in range(12)] for kind in KINDS[:30]]
    subjects += [[flower(colour, draws) for _ in range(12)] for colour in FLOWERS]
    images = as_tensor([picture for subject in subjects for picture in subject])
    labels = torch.arange(len(subjects)).repeat_interleave(12)
    backbone = create_backbone("small_cnn", width=8)
    network = nn.Sequential(backbone, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(subjects)))
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(60):
        rows = torch.randint(len(images), (64,))
        optimiser.zero_grad()
        cross_entropy(network(images[rows]), labels[rows]).backward()
        optimiser.step()
    save_file(backbone.state_dict(), file)


def write_folder(root: str, kinds: list[tuple[str, str]], each: int, seed: int = 0) -> None:
    """Write pictures of a meadow, one folder a kind."""
    draws = random.Random(seed)
    for kind in kinds:
        folder = Path(root, "-".join(kind))
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(each):
            meadow(kind, draws).save(folder / f"{number}.png")


def _picture(
    kind: tuple[str, str] | None, flowers: list[str], zoom: float, draws: random.Random, size: int
) -> Image.Image:
    # Drawn larger and averaged, which smooths the edges.
    side = 192
    picture = Image.new("RGB", (side, side), (52, 100, 46))
    pen = ImageDraw.Draw(picture)
    for _ in range(80):
        x, y, length = draws.uniform(0, side), draws.uniform(0, side + 40), draws.randint(10, 44)
        pen.line((x, y, x + draws.uniform(-16, 16), y - length), fill=(35, 70 + 2 * length, 30), width=3)
    for colour in flowers:
        radius, turn = zoom * draws.uniform(8, 14), draws.random()
        x, y = (draws.uniform(20, side - 20) for _ in range(2))
        for petal in range(5):
            angle = 2 * math.pi * (petal / 5 + turn)
            pen.circle((x + radius * math.cos(angle), y + radius * math.sin(angle)), 0.75 * radius, fill=colour)
        pen.circle((x, y), 0.6 * radius, fill="khaki")
    if kind is not None:
        _draw_butterfly(pen, kind, zoom * draws.uniform(20, 30), draws, side)
    return picture.resize((size, size), Image.Resampling.BOX)


def _draw_butterfly(
    pen: ImageDraw.ImageDraw, kind: tuple[str, str], span: float, draws: random.Random, side: int
) -> None:
    room = min(1.6 * span, side / 2)
    x, y = (draws.uniform(room, side - room) for _ in range(2))
    turn = draws.uniform(-0.7, 0.7)

    def placed(*points: tuple[float, float]) -> list[tuple[float, float]]:
        cosine, sine = span * math.cos(turn), span * math.sin(turn)
        return [(x + u * cosine - v * sine, y + u * sine + v * cosine) for u, v in points]

    for wing in (-1, 1):
        pen.polygon(placed((0, 0), (1.3 * wing, -1.2), (1.5 * wing, -0.3), (0.9 * wing, 0.1)), fill=kind[0])
        pen.polygon(placed((0, 0.05), (1.1 * wing, 0.15), (0.9 * wing, 1.1), (0.4 * wing, 0.9)), fill=kind[1])
    pen.line(placed((0, -0.7), (0, 0.8)), fill=(30, 20, 20), width=6)
