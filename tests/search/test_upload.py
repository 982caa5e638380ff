"""Uploads: what is read, what is refused, and by which status."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspool import Embedder
from gspool.data import BrokenImageError
from gspool.search import Limits
from gspool.search.images import read_pixels
from gspool.search.serve.api import status_of
from search.corpus_files import noise
from search.served import as_bytes, png_bomb

LIMITS = Limits(max_bytes=200_000, max_pixels=100_000)
# As large a crop as the picture, so that a changed pixel is seen.
MODEL = Embedder("resnet20", pooling="gap", dim=8)


def read_upload(content: bytes, limits: Limits = LIMITS):
    return read_pixels(content, MODEL, limits)[0]


def refused(content: bytes, limits: Limits = LIMITS) -> tuple[int, str]:
    with pytest.raises(BrokenImageError) as caught:
        read_upload(content, limits)
    return status_of(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "kind", ["TIFF", "PPM", "ICO", "PDF", "TGA", "<svg xmlns='http://x'/>", "\0", "MZ", "%!PS-Adobe"]
)
def test_other_formats_and_what_is_no_picture_are_refused(kind: str) -> None:
    status, reason = refused(as_bytes(noise(0), kind) if kind.isalpha() and len(kind) > 2 else kind.encode())
    assert status == 415
    assert "not one of JPEG, PNG, WEBP, GIF, BMP" in reason


def test_bytes_and_pixels_are_counted_to_the_last() -> None:
    content = as_bytes(noise(0, (50, 40)))
    read_upload(content, Limits(len(content), 2000))
    assert refused(content, Limits(len(content) - 1, 2000))[0] == 413
    assert refused(content, Limits(len(content), 1999))[0] == 413


@pytest.mark.parametrize("size", [(1000, 1000), (12_000, 12_000), (20_000, 20_000), (1, 500_000), (500_000, 1)])
def test_a_bomb_is_refused_before_it_is_decoded(size, monkeypatch) -> None:
    """Kilobytes that would become megapixels: below and above the sizes at which Pillow warns and refuses."""
    content = png_bomb(*size)
    assert len(content) < LIMITS.max_bytes

    def decoded(*arguments, **options):
        raise AssertionError("a bomb was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    assert refused(content)[0] == 413


@pytest.mark.parametrize("size", [(1, 90_000), (90_000, 1), (2, 50_000)])
def test_a_line_is_refused_before_it_is_resized(size, monkeypatch) -> None:
    """Few pixels, whose shorter side would be resized to that of the model and the longer one with it."""

    def resized(*arguments, **options):
        raise AssertionError("it was resized")

    monkeypatch.setattr("PIL.Image.Image.resize", resized)
    status, reason = refused(png_bomb(*size))
    assert status == 413
    assert f"{size[0]} x {size[1]} pixels are too long and narrow" in reason


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_truncated_picture_is_refused(kind: str) -> None:
    content = as_bytes(noise(0, (200, 200)), kind)
    assert refused(content[: len(content) // 2])[0] in (415, 422)


# Pillow warns of damaged metadata.
@pytest.mark.filterwarnings("ignore:::PIL")
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_refused_or_read_and_never_crashes(data) -> None:
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "WEBP"]))
    content = bytearray(as_bytes(noise(3), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        outcome = tuple(read_upload(bytes(content)).shape)
    except BrokenImageError as problem:
        outcome = status_of(problem)
    assert outcome in ((3, 32, 32), 413, 415, 422)
