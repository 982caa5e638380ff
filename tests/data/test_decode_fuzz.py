"""Damaged pictures: each is a picture or one `BrokenImageError`, in bounded time and memory."""

from __future__ import annotations

import io
import json
import os
import resource
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gspool.data.decode import BrokenImageError, open_image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP")
MODES = ("RGB", "L", "RGBA", "P", "I;16", "CMYK", "1", "LA")
MAX_PIXELS = 2_000_000
# Numbers that parsers like least: lengths, sizes and counts at the ends of their ranges.
HOSTILE = (b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x40\x00", b"\x00\x40\x00\x00")


def seeds():
    """Sound pictures of every format, in every mode that it has, with EXIF and several frames where it can."""
    pixels = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 31, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    found = []
    for format in FORMATS:
        for mode in MODES:
            image = pixels.convert("L").convert(mode) if mode == "I;16" else pixels.convert(mode)
            content = io.BytesIO()
            frames = {"save_all": True, "append_images": [image]} if format in ("GIF", "WEBP", "TIFF") else {}
            try:
                image.save(content, format, **frames, **({} if format in ("GIF", "BMP") else {"exif": exif}))
            except (OSError, KeyError, ValueError):  # the format has no such mode
                continue
            found.append(content.getvalue())
    return found


def mutated(sound, other, rng):
    """Damage a picture in one of six ways."""
    content = bytearray(sound)
    kind, place = rng.integers(6), int(rng.integers(len(sound)))
    if kind == 0:  # bytes anywhere
        for spot in rng.integers(len(sound), size=rng.integers(1, 9)):
            content[spot] = rng.integers(256)
    elif kind == 1:  # a hostile number, mostly in the head
        spot = int(rng.integers(min(len(sound), 64))) if rng.random() < 0.7 else place
        content[spot : spot + 4] = HOSTILE[rng.integers(len(HOSTILE))]
    elif kind == 2:  # cut off
        del content[place:]
    elif kind == 3:  # a piece twice
        content[place:place] = content[place : place + int(rng.integers(1, 200))]
    elif kind == 4:  # a piece missing
        del content[place : place + int(rng.integers(1, 50))]
    else:  # the head of one, the rest of another
        content = content[:place] + bytearray(other[int(rng.integers(len(other))) :])
    return bytes(content)


@pytest.mark.filterwarnings("ignore")  # Pillow warns of damage that it can live with
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_damaged_picture_is_read_or_refused(count):
    rng = np.random.default_rng(0)
    sound = seeds()
    read, slowest, begun = 0, 0.0, time.perf_counter()
    for content in sound:  # Pillow loads its plugins now
        with suppress(BrokenImageError):
            open_image(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        content = mutated(sound[number % len(sound)], sound[rng.integers(len(sound))], rng)
        start = time.process_time()
        with suppress(BrokenImageError):
            image = open_image(content, max_pixels=MAX_PIXELS)
            assert image.mode == "RGB"
            assert image.width * image.height <= MAX_PIXELS
            read += 1
        slowest = max(slowest, time.process_time() - start)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if count > 1_000 and (figures := os.environ.get("GSPOOL_FIGURES")):
        record = {"pictures": count, "read": read, "refused": count - read, "slowest": slowest, "megabytes": grown}
        record["seconds"] = time.perf_counter() - begun
        Path(figures).write_text(json.dumps({"decode_fuzz": record}, indent=1))
    assert count / 10 < read < count * 2 / 3
    assert slowest < 5
    # Two million pixels at twelve bytes each are 24 MB; what is left is Pillow's and Python's own.
    assert grown < 100
