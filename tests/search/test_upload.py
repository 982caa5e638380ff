"""Uploads: what is read, what is refused, and by which status."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gspool import Embedder
from gspool.data import BrokenImageError
from gspool.search import Limits, prepare
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


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "JPEG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pictures_of_known_formats_are_read(kind: str, mode: str) -> None:
    picture = noise(0).convert(mode)
    pixels = read_upload(as_bytes(picture, kind))
    if kind in ("PNG", "BMP"):
        assert pixels.equal(prepare(picture.convert("RGB"), MODEL))
    assert tuple(pixels.shape) == (3, 32, 32)


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO", "PDF", "TGA"])
def test_other_formats_are_refused(kind: str) -> None:
    status, reason = refused(as_bytes(noise(0), kind))
    assert status == 415
    assert "not one of JPEG, PNG, WEBP, GIF, BMP" in reason


@pytest.mark.parametrize("content", [b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"\0" * 100, b"MZ", b"%!PS-Adobe"])
def test_what_is_not_a_picture_is_refused(content: bytes) -> None:
    assert refused(content)[0] == 415


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


def test_a_narrow_picture_within_the_limit_is_read() -> None:
    assert tuple(read_upload(png_bomb(4, 300)).shape) == (3, 32, 32)


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


def test_it_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    turned = read_upload(as_bytes(noise(0), exif=exif))
    assert turned.equal(prepare(noise(0).rotate(180), MODEL))


@pytest.mark.parametrize("limits", [Limits(max_bytes=0), Limits(max_pixels=-1)])
def test_limits_are_positive(limits: Limits) -> None:
    with pytest.raises(ValueError, match="must be positive, got"):
        limits.check()
