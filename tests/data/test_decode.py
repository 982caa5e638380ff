from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gspool.data.decode import (
    BrokenImageError,
    ImageTooLargeError,
    UnknownFormatError,
    as_rgb,
    decode,
    open_image,
    size_after_resize,
    stored_size,
)

SCENE = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_the_content_decides_and_not_the_name(tmp_path, format):
    Image.fromarray(SCENE).save(tmp_path / "a.jpg", format=format)
    image = decode(tmp_path / "a.jpg")
    assert (image.dtype, image.shape) == (torch.uint8, (3, 6, 9))
    assert format != "PNG" or np.array_equal(image.permute(1, 2, 0).numpy(), SCENE)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK"])
def test_every_mode_gives_three_channels(tmp_path, mode):
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new(mode, (4, 3)).save(path)
    assert decode(path).shape == (3, 3, 4)


def test_transparent_ground_is_white_and_opaque_colour_stays(tmp_path):
    pixels = np.zeros((1, 2, 4), dtype=np.uint8)
    pixels[0, 1] = (200, 100, 50, 255)
    Image.fromarray(pixels).save(tmp_path / "alpha.png")
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([1, 2, 3, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "palette.png", transparency=bytes([0, 255]))
    for name in ("alpha.png", "palette.png"):
        assert decode(tmp_path / name)[:, 0].T.tolist() == [[255, 255, 255], [200, 100, 50]]


def test_sixteen_bit_grey_is_scaled_and_not_clipped(tmp_path):
    Image.fromarray(np.array([[0, 257 * 100, 65535]], dtype=np.uint16)).save(tmp_path / "a.png")
    assert decode(tmp_path / "a.png")[:, 0].T.tolist() == [[0] * 3, [100] * 3, [255] * 3]


# Orientation 6 is a camera held a quarter turn to the right: turn the picture clockwise to see it upright.
@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, -1), (8, 1)])
def test_pictures_stand_upright(tmp_path, orientation, turns):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(SCENE).save(tmp_path / "a.png", exif=exif)
    image = decode(tmp_path / "a.png")
    assert np.array_equal(image.permute(1, 2, 0).numpy(), np.rot90(SCENE, turns))
    assert stored_size(tmp_path / "a.png") == ((6, 9) if turns % 2 else (9, 6))


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("after_the_pixels", [False, True])
@pytest.mark.parametrize("kind", ["exif", "xmp", "text"])
def test_what_turns_a_png_may_be_anywhere_in_it(tmp_path, kind, after_the_pixels, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    tiff = exif.tobytes().removeprefix(b"Exif\0\0")
    turning = {
        "exif": chunk(b"eXIf", tiff),
        "xmp": chunk(b"iTXt", b'XML:com.adobe.xmp\0\0\0\0\0<rdf tiff:Orientation="%d"/>' % orientation),
        "text": chunk(b"tEXt", b"Raw profile type exif\0\nexif\n %d\n%s" % (len(tiff), tiff.hex().encode())),
    }[kind]
    content = png((9, 6))
    at = content.index(b"IEND" if after_the_pixels else b"IDAT") - 4
    (tmp_path / "a.png").write_bytes(content[:at] + turning + content[at:])
    size = (6, 9) if orientation == 6 else (9, 6)
    assert stored_size(tmp_path / "a.png") == open_image(tmp_path / "a.png").size == size
    # The size of any other is in its head.
    (tmp_path / "b.png").write_bytes(content[: content.index(b"IDAT") + 4])
    assert stored_size(tmp_path / "b.png") == (9, 6)


@pytest.mark.parametrize(("width", "height"), [(400, 300), (300, 400), (300, 300), (1, 7), (641, 13)])
def test_resizing_brings_the_shorter_side_and_keeps_the_shape(tmp_path, width, height):
    path = tmp_path / "a.png"
    Image.new("L", (width, height)).save(path)
    image = decode(path, shorter_side=32)
    assert min(image.shape[1:]) == 32
    assert max(image.shape[1:]) == int(32 * max(width, height) / min(width, height))
    assert stored_size(path, 32) == (image.shape[2], image.shape[1]) == size_after_resize(width, height, 32)


def test_resizing_averages_over_what_it_shrinks(tmp_path):
    board = np.indices((64, 64)).sum(0) % 2 * 255
    Image.fromarray(board.astype(np.uint8)).save(tmp_path / "a.png")
    image = decode(tmp_path / "a.png", shorter_side=8).float()
    # Without antialiasing a chequerboard falls to black or white; with it every pixel is the grey of both.
    assert (image - 127.5).abs().max() < 6


NO_IMAGES = {
    "missing": (lambda path: None, "there is no such file"),
    "empty": (lambda path: path.touch(), "the file is empty"),
    "page": (lambda path: path.write_bytes(b"<html>not found</html>"), "not one of JPEG"),
    "folder": (lambda path: path.mkdir(), "this is a folder, not an image"),
    "pipe": (os.mkfifo, "this is not a regular file"),
    "null": (lambda path: path.symlink_to("/dev/null"), "this is not a regular file"),
    "zero": (lambda path: path.symlink_to("/dev/zero"), "this is not a regular file"),
    "dead link": (lambda path: path.symlink_to("gone.jpg"), r"there is no such file, this is a link to gone\.jpg"),
    "loop": (lambda path: path.symlink_to(path.name), "Too many levels"),
}


@pytest.mark.parametrize("kind", NO_IMAGES)
def test_what_is_no_image_is_named_without_waiting(tmp_path, kind):
    make, told = NO_IMAGES[kind]
    make(tmp_path / "bad.jpg")
    for open_it in (decode, stored_size):
        with pytest.raises(BrokenImageError, match=rf"bad\.jpg: .*{told}"):
            open_it(tmp_path / "bad.jpg")


def test_a_truncated_image_is_broken_and_not_grey(tmp_path, jpeg_bytes):
    (tmp_path / "cut.jpg").write_bytes(jpeg_bytes[: len(jpeg_bytes) // 2])
    with pytest.raises(BrokenImageError, match=r"cut\.jpg: damaged"):
        decode(tmp_path / "cut.jpg")
    with pytest.raises(BrokenImageError, match="null"):
        decode("a\0.jpg")


def test_bytes_are_read_like_files(tmp_path, jpeg_bytes):
    (tmp_path / "a").write_bytes(jpeg_bytes)
    assert open_image(jpeg_bytes).tobytes() == open_image(tmp_path / "a").tobytes()
    for content in (b"", b"<svg/>"):
        with pytest.raises(UnknownFormatError, match="this image: the content is not one of JPEG, PNG"):
            open_image(content)


# ------------------------------------------------------------------------------------------------------------- limits


def png(size, mode="L"):
    content = io.BytesIO()
    Image.new(mode, size).save(content, "PNG", compress_level=9)
    return content.getvalue()


@pytest.mark.parametrize(
    ("limit", "enough", "reason"),
    [
        ({"max_bytes": 50}, {"max_bytes": 100}, r"MiB, at most 0\.0 MiB are read"),
        ({"max_pixels": 1_199}, {"max_pixels": 1_200}, "40 x 30 pixels, at most 1,199 in all"),
        ({"shorter_side": 10_000}, {"shorter_side": 2_500}, "resized to 10000 .* 13,333 x 10,000, at most 25,000,000"),
    ],
)
def test_each_limit_is_refused_by_name(limit, enough, reason):
    with pytest.raises(ImageTooLargeError, match=f"^holiday: .*{reason}"):
        open_image(png((40, 30)), name="holiday", **limit)
    assert open_image(png((40, 30)), **enough).size == (40, 30)


@pytest.mark.parametrize("size", [(1, 500_000), (500_000, 1), (2, 200_000)])
def test_a_line_of_pixels_is_refused_before_it_is_resized(tmp_path, size):
    path = tmp_path / "line.png"
    path.write_bytes(png(size))
    assert path.stat().st_size < 3_000
    for read in (decode, stored_size, open_image, lambda path: decode(path, 256), lambda path: stored_size(path, 16)):
        with pytest.raises(ImageTooLargeError, match=r"line\.png: .* too long and narrow"):
            read(path)
    # Long pictures that somebody may well have are read.
    path.write_bytes(png((100, 10_000)))
    assert decode(path, 256).shape == (3, 25_600, 256)


PEAK = """
import resource, sys
from gspool.data.decode import BrokenImageError, open_image
def peak(name):
    try:
        open_image(f"{sys.argv[1]}/{name}", max_pixels=8_000_000)
    except BrokenImageError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak("small.png")
print(*((peak(name) - before) / 1024 for name in sys.argv[2:]))
"""


def test_peak_memory_of_one_picture_is_bounded(tmp_path):
    # A head that promises 240 megapixels; the modes are those that need the most copies.
    huge = bytearray(png((1, 1)))
    huge[16:24] = struct.pack(">II", 16_000, 15_000)
    huge[29:33] = struct.pack(">I", zlib.crc32(huge[12:29]))
    contents = {
        "small.png": png((100, 100)),
        "line.png": png((1, 500_000)),
        "huge.png": bytes(huge),
        "deep.png": png((4_000, 2_000), "I;16"),
        "transparent.png": png((4_000, 2_000), "RGBA"),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    # In a process of its own: the peak of a process never falls.
    words = [sys.executable, "-c", PEAK, tmp_path, *contents]
    measured = subprocess.run(words, capture_output=True, text=True, check=True)
    _, line, huge_peak, deep, transparent = map(float, measured.stdout.split())
    assert max(line, huge_peak) < 10
    assert max(deep, transparent) < 12 * 8  # bytes a pixel, megapixels


def test_bands_of_rows_give_the_same_picture(monkeypatch):
    rng = np.random.default_rng(0)
    transparent = Image.fromarray(rng.integers(0, 256, (7, 5, 4), dtype=np.uint8))
    deep = Image.fromarray(rng.integers(0, 65536, (7, 5), dtype=np.uint16))
    whole = [as_rgb(image).tobytes() for image in (transparent, deep)]
    # By its full name: gspool.data.decode is also a function.
    monkeypatch.setattr(sys.modules["gspool.data.decode"], "_BAND", 11)  # two rows, and a rest of one
    assert [as_rgb(image).tobytes() for image in (transparent, deep)] == whole


def test_a_name_that_is_not_utf8_can_be_read_and_printed(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path / "caf") + b"\xe9.png"))
    path.write_bytes(png((4, 3)))
    assert decode(path).shape == (3, 3, 4)
    path.write_bytes(b"not an image")
    with pytest.raises(BrokenImageError) as refused:
        decode(path)
    assert "caf\\xe9.png" in str(refused.value).encode().decode()
