from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gspool.data.decode import BrokenImageError, decode, size_after_resize, stored_size


@pytest.fixture
def scene() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def test_png_pixels_come_back_exactly(tmp_path: Path, scene: np.ndarray) -> None:
    Image.fromarray(scene).save(tmp_path / "a.png")
    image = decode(tmp_path / "a.png")
    assert image.dtype == torch.uint8
    assert np.array_equal(image.permute(1, 2, 0).numpy(), scene)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_the_content_decides_and_not_the_name(tmp_path: Path, scene: np.ndarray, format: str) -> None:
    Image.fromarray(scene).save(tmp_path / "a.jpg", format=format)
    assert decode(tmp_path / "a.jpg").shape == (3, 6, 9)


def test_transparent_ground_is_white_and_opaque_colour_stays(tmp_path: Path) -> None:
    pixels = np.zeros((2, 2, 4), dtype=np.uint8)
    pixels[0, 0] = (10, 20, 30, 255)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    image = decode(tmp_path / "a.png")
    assert image[:, 0, 0].tolist() == [10, 20, 30]
    assert image[:, 1, 1].tolist() == [255, 255, 255]


def test_palette_with_transparency_is_composed(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1), 0)
    image.putpalette([1, 2, 3, 200, 100, 50])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "a.png", transparency=bytes([0, 255]))
    assert decode(tmp_path / "a.png")[:, 0].T.tolist() == [[255, 255, 255], [200, 100, 50]]


def test_sixteen_bit_grey_is_scaled_and_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 257 * 100, 65535]], dtype=np.uint16)).save(tmp_path / "a.png")
    assert decode(tmp_path / "a.png")[:, 0].T.tolist() == [[0] * 3, [100] * 3, [255] * 3]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK"])
def test_every_mode_gives_three_channels(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new(mode, (4, 3)).save(path)
    assert decode(path).shape == (3, 3, 4)


@pytest.mark.parametrize(("orientation", "turned"), [(1, False), (3, False), (6, True), (8, True)])
def test_pictures_stand_upright(tmp_path: Path, scene: np.ndarray, orientation: int, turned: bool) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(scene).save(tmp_path / "a.png", exif=exif)
    # Orientation 6 is a camera held a quarter turn to the right: turn the picture clockwise to see it upright.
    expected = {1: scene, 3: scene[::-1, ::-1], 6: np.rot90(scene, -1), 8: np.rot90(scene, 1)}[orientation]
    image = decode(tmp_path / "a.png")
    assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)
    assert stored_size(tmp_path / "a.png") == ((6, 9) if turned else (9, 6))


@pytest.mark.parametrize(("width", "height"), [(400, 300), (300, 400), (300, 300), (1, 7), (641, 13)])
def test_resizing_brings_the_shorter_side_and_keeps_the_shape(tmp_path: Path, width: int, height: int) -> None:
    Image.new("L", (width, height)).save(tmp_path / "a.png")
    image = decode(tmp_path / "a.png", shorter_side=32)
    assert min(image.shape[1:]) == 32
    assert max(image.shape[1:]) == int(32 * max(width, height) / min(width, height))
    assert (
        stored_size(tmp_path / "a.png", 32) == (image.shape[2], image.shape[1]) == size_after_resize(width, height, 32)
    )


def test_resizing_averages_over_what_it_shrinks(tmp_path: Path) -> None:
    board = np.indices((64, 64)).sum(0) % 2 * 255
    Image.fromarray(board.astype(np.uint8)).save(tmp_path / "a.png")
    image = decode(tmp_path / "a.png", shorter_side=8).float()
    # Without antialiasing a chequerboard falls to black or white; with it every pixel is the grey of both.
    assert (image - 127.5).abs().max() < 6


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "no such file"), (b"", "the file is empty"), (b"<html>not found</html>", "not one of JPEG")],
)
def test_what_is_no_image_is_named(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "bad.jpg"
    if content is not None:
        path.write_bytes(content)
    for open_it in (decode, stored_size):
        with pytest.raises(BrokenImageError, match=f"bad.jpg: .*{told}"):
            open_it(path)


def test_a_truncated_image_is_broken_and_not_grey(tmp_path: Path, jpeg_bytes: bytes) -> None:
    (tmp_path / "cut.jpg").write_bytes(jpeg_bytes[: len(jpeg_bytes) // 2])
    with pytest.raises(BrokenImageError, match=r"cut\.jpg: damaged"):
        decode(tmp_path / "cut.jpg")


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
@pytest.mark.filterwarnings("ignore")  # Pillow warns of some damage that it can live with
def test_damage_of_any_kind_is_a_broken_image_or_a_picture(tmp_path: Path, scene: np.ndarray, format: str) -> None:
    path = tmp_path / "a"
    Image.fromarray(scene).save(path, format=format)
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(150):
        damaged = np.frombuffer(sound, dtype=np.uint8).copy()
        damaged[rng.integers(len(damaged), size=4)] = rng.integers(256, size=4)
        path.write_bytes(damaged[: rng.integers(1, len(damaged) + 1)].tobytes())
        try:
            assert decode(path).shape[0] == 3
        except BrokenImageError:
            broken += 1
    assert broken > 50


def test_a_folder_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(BrokenImageError, match="folder, not an image"):
        decode(tmp_path)
