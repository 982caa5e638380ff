"""Images come to the device as they are in their files, and sets are cut without copying them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from gspool import data
from gspool.data.decode import decode
from gspool.data.image_set import ImageSet
from gspool.experiments.resident import ResidentSet, load_resident


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    for number, (width, height) in enumerate([(30, 20), (20, 44), (20, 20), (90, 21)]):
        place = tmp_path / f"class{number % 2}"
        place.mkdir(exist_ok=True)
        pixels = torch.randint(256, (height, width, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(place / f"{number}.png")
    return tmp_path


def image_set(folder: Path) -> ImageSet:
    paths = sorted(folder.glob("*/*.png"))
    labels = [int(path.parent.name[-1]) for path in paths]
    return ImageSet(data.FileImages(paths), labels, ["a", "b"], name="pictures")


def test_every_image_lies_in_its_frame_and_the_long_ones_keep_their_middle(folder: Path) -> None:
    images = image_set(folder)
    resident = load_resident(images, shorter_side=16, longest=24)
    assert resident.pixels.shape == (4, 3, 24, 24)
    for row in range(4):
        whole = decode(Path(images.describe(row)), 16)
        height, width = resident.sizes[row].tolist()
        assert (height, width) == tuple(min(side, 24) for side in whole.shape[1:])
        top, left = (whole.shape[1] - height) // 2, (whole.shape[2] - width) // 2
        assert torch.equal(resident.pixels[row, :, :height, :width], whole[:, top : top + height, left : left + width])


def test_a_selection_of_a_set_is_loaded_in_its_order(folder: Path) -> None:
    images = image_set(folder)
    whole, part = (load_resident(each, shorter_side=16) for each in (images, images.subset([3, 1])))
    for row, source in enumerate([3, 1]):
        height, width = part.sizes[row].tolist()
        assert torch.equal(part.pixels[row, :, :height, :width], whole.pixels[source, :, :height, :width])
    assert part.labels.tolist() == images.labels[[3, 1]].tolist()


def test_a_broken_image_is_named(folder: Path) -> None:
    (folder / "class0" / "0.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"0\.png"):
        load_resident(image_set(folder), shorter_side=16)


def test_roles_become_questions() -> None:
    source = data.ArrayImages(torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    images = ImageSet(source, [0, 0, 1, 1], ["a", "b"], name="shop", roles=["query", "gallery", "query", "gallery"])
    resident = load_resident(images)
    assert resident.asks is not None
    assert resident.asks.tolist() == [True, False, True, False]
    cut = resident.of_classes([1])
    assert cut.asks is not None
    assert cut.asks.tolist() == [True, False]


def test_cutting_a_set_shares_its_pixels() -> None:
    whole = ResidentSet.of(torch.zeros(6, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2, 0, 1, 2]))
    part = whole.of_classes([2, 1])
    assert part.pixels.data_ptr() == whole.pixels.data_ptr()
    assert part.rows.tolist() == [1, 2, 4, 5]
    assert part.labels.tolist() == [0, 1, 0, 1]
    # A cut of a cut speaks of the labels of the first cut.
    assert part.of_classes([1]).rows.tolist() == [2, 5]


def test_what_does_not_fit_is_refused() -> None:
    pixels = torch.zeros(3, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="3 rows need as many labels, got 2"):
        ResidentSet.of(pixels, torch.tensor([0, 1]))
    whole = ResidentSet.of(pixels, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="rows must name some of the 3 images"):
        whole.of_classes([7])
