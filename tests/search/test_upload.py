"""Uploads: what is read, what is refused, and by which status."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gspool.search.upload import UploadLimits, UploadRefusedError, read_upload
from search.served import as_bytes, noise, png_bomb

LIMITS = UploadLimits(bytes=200_000, pixels=100_000)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pictures_of_known_formats_are_read(kind: str, mode: str) -> None:
    picture = read_upload(as_bytes(noise(0).convert(mode), kind), LIMITS)
    assert (picture.mode, picture.size) == ("RGB", (48, 40))


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO", "PDF", "TGA"])
def test_other_formats_are_refused(kind: str) -> None:
    with pytest.raises(UploadRefusedError, match="not one of JPEG, PNG, WEBP, GIF, BMP") as refused:
        read_upload(as_bytes(noise(0), kind), LIMITS)
    assert refused.value.status == 415


@pytest.mark.parametrize(
    "content",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"<html></html>",
        b"\0" * 100,
        b"%PDF-1.7",
        b"MZ",
        b"x",
        b"%!PS-Adobe",
    ],
)
def test_what_is_no_picture_is_refused(content: bytes) -> None:
    with pytest.raises(UploadRefusedError) as refused:
        read_upload(content, LIMITS)
    assert refused.value.status == 415


def test_nothing_is_refused() -> None:
    with pytest.raises(UploadRefusedError, match="empty; send the bytes") as refused:
        read_upload(b"", LIMITS)
    assert refused.value.status == 422


def test_bytes_are_counted_to_the_last() -> None:
    content = as_bytes(noise(0))
    assert read_upload(content, LIMITS._replace(bytes=len(content))).size == (48, 40)
    with pytest.raises(UploadRefusedError, match="make it smaller") as refused:
        read_upload(content, LIMITS._replace(bytes=len(content) - 1))
    assert refused.value.status == 413


def test_pixels_are_counted_to_the_last() -> None:
    content = as_bytes(noise(0, (50, 40)))
    assert read_upload(content, LIMITS._replace(pixels=2000)).size == (50, 40)
    with pytest.raises(UploadRefusedError, match="50 x 40 pixels, at most 1,999") as refused:
        read_upload(content, LIMITS._replace(pixels=1999))
    assert refused.value.status == 413


@pytest.mark.parametrize("side", [1000, 12_000, 20_000])
def test_a_bomb_is_refused_before_it_is_decoded(side: int, monkeypatch) -> None:
    """Kilobytes that would become megapixels: below and above the sizes at which Pillow warns and refuses."""
    content = png_bomb(side, side)
    assert len(content) < LIMITS.bytes

    def decoded(*arguments, **options):
        raise AssertionError("a bomb was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    with pytest.raises(UploadRefusedError) as refused:
        read_upload(content, LIMITS)
    assert refused.value.status == 413


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_picture_that_is_cut_off_is_refused(kind: str) -> None:
    content = as_bytes(noise(0, (200, 200)), kind)
    with pytest.raises(UploadRefusedError) as refused:
        read_upload(content[: len(content) // 2], LIMITS)
    assert refused.value.status in (415, 422)


# Pillow says what it makes of damaged metadata; that is its own affair.
@pytest.mark.filterwarnings("ignore:::PIL")
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_refused_or_read_and_never_crashes(data) -> None:
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "WEBP"]))
    content = bytearray(as_bytes(noise(3), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        answer = read_upload(bytes(content), LIMITS).mode
    except UploadRefusedError as refused:
        answer = refused.status
    assert answer in ("RGB", 413, 415, 422)


def test_it_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_upload(as_bytes(noise(0), "JPEG", exif=exif), LIMITS).size == (40, 48)


@pytest.mark.parametrize("limits", [UploadLimits(bytes=0), UploadLimits(pixels=-1)])
def test_limits_are_positive(limits: UploadLimits) -> None:
    with pytest.raises(ValueError, match="must be positive, got"):
        limits.check()
