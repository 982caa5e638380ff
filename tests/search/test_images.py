"""Pictures from outside: decoded by content, within limits, upright; anything else refused in words."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from gspool.data import BrokenImageError, decode
from gspool.search import open_image, prepare
from gspool.search.images import ImageTooLargeError, UnknownFormatError


def as_bytes(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def bomb(width: int, height: int) -> bytes:
    """Give a PNG of a few bytes that claims to be large."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_what_training_would_see(mode, tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8))
    path = tmp_path / ("picture.jpg" if mode == "CMYK" else "picture.png")
    (image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)).save(path)
    seen = open_image(path)
    assert seen.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(seen), decode(path).permute(1, 2, 0).numpy())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_the_content_decides_and_bytes_are_as_good_as_a_file(kind, tmp_path):
    content = as_bytes(Image.new("RGB", (8, 6), (10, 200, 30)), kind)
    path = tmp_path / "misnamed.png"
    path.write_bytes(content)
    np.testing.assert_array_equal(np.asarray(open_image(path)), np.asarray(open_image(content)))


def test_pictures_on_their_side_are_set_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    left_dark = Image.fromarray(np.repeat(np.array([[0] * 8 + [255] * 8], dtype=np.uint8), 8, axis=0))
    upright = open_image(as_bytes(left_dark, exif=exif))
    assert upright.size == (8, 16)
    assert np.asarray(upright)[0].max() < np.asarray(upright)[-1].min()


def test_too_many_pixels_are_refused_before_decoding():
    with pytest.raises(ImageTooLargeError, match="10000 x 8500 pixels"):
        open_image(bomb(10_000, 8_500), max_pixels=80_000_000)
    for side in (12_000, 60_000):
        with pytest.raises(ImageTooLargeError):
            open_image(bomb(side, side))
    with pytest.raises(ImageTooLargeError, match="48 x 40"):
        open_image(as_bytes(Image.new("L", (48, 40))), max_pixels=48 * 40 - 1)
    assert open_image(as_bytes(Image.new("L", (48, 40))), max_pixels=48 * 40).size == (48, 40)


def test_too_many_bytes_are_refused(tmp_path):
    content = as_bytes(Image.new("RGB", (64, 64)))
    (tmp_path / "large.png").write_bytes(content)
    for source in (content, tmp_path / "large.png"):
        with pytest.raises(ImageTooLargeError, match="MiB"):
            open_image(source, max_bytes=len(content) - 1)
        assert open_image(source, max_bytes=len(content)).size == (64, 64)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.4", b"\0" * 99]
)
def test_what_is_no_picture_is_refused(content):
    with pytest.raises(UnknownFormatError, match="not one of JPEG"):
        open_image(content)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_a_truncated_picture_is_refused(kind):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    content = as_bytes(noise, kind)
    with pytest.raises(BrokenImageError):
        open_image(content[: len(content) // 2])


def test_formats_nobody_asked_for_are_refused():
    with pytest.raises(UnknownFormatError):
        open_image(as_bytes(Image.new("L", (8, 8)), "TIFF"))


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "empty.png").touch()
    for name, word in (("pipe.png", "regular"), ("empty.png", "empty"), ("none.png", "no such file"), ("", "folder")):
        with pytest.raises(BrokenImageError, match=word):
            open_image(tmp_path / name)


def test_a_picture_is_cut_as_in_evaluation(small_model):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 130, 3), dtype=np.uint8))
    expected = small_model.pixels.transform()(image)
    assert prepare(image, small_model).equal(expected)
    assert tuple(expected.shape) == (3, 64, 64)
