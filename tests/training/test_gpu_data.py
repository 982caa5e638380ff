"""Data on the device: what is loaded, what a step sees of it, and that training on it is training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from gspool import data
from gspool.data.crops import centre_boxes, draw_crops, resample
from gspool.data.decode import decode
from gspool.data.image_set import ImageSet, mixed_seed
from gspool.models import FeatureMapEmbedder, Pixels
from gspool.models.embedder import Embedded
from gspool.training import DataConfig, fit
from gspool.training.gpu_data import TensorSet, load_tensors, tensor_batches
from gspool.training.sets import on_device
from training.tiny_run import draw_pictures, tiny


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


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3], [3, 1]])
def test_every_image_lies_in_its_frame_and_the_long_ones_keep_their_middle(folder: Path, chosen: list[int]) -> None:
    images = image_set(folder).subset(chosen)
    loaded = load_tensors(images, shorter_side=16, longest=24, transform="crop", size=12)
    assert loaded.labels.tolist() == image_set(folder).labels[chosen].tolist()
    for row in range(len(chosen)):
        whole = decode(Path(images.describe(row)), 16)
        height, width = loaded.sizes[row].tolist()
        assert (height, width) == tuple(min(side, 24) for side in whole.shape[1:])
        top, left = (whole.shape[1] - height) // 2, (whole.shape[2] - width) // 2
        assert torch.equal(loaded.pixels[row, :, :height, :width], whole[:, top : top + height, left : left + width])


@pytest.mark.parametrize("size", [227, 448])
def test_the_centre_of_a_long_image_is_whole_at_any_size(tmp_path: Path, size: int) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in (1, 2):
            Image.new("RGB", (300, 100), "white").save(tmp_path / name / f"{number}.png")
    pixels = Pixels(size=size, resize=round(256 / 227 * size))
    images = data.create("folder", tmp_path, "all")
    held = on_device(images, DataConfig(name="folder", transform="crop"), pixels, "cpu")
    assert int(held.evaluation_images(torch.arange(4)).min()) == 255


def test_a_broken_image_is_named(folder: Path) -> None:
    (folder / "class0" / "0.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"0\.png"):
        load_tensors(image_set(folder), shorter_side=16, transform="crop", size=12)


def test_pictures_in_memory_are_resized_as_files_are(tmp_path: Path) -> None:
    pixels = torch.arange(2 * 3 * 12 * 20, dtype=torch.uint8).view(2, 3, 12, 20)
    held = ImageSet(data.ArrayImages(pixels), [0, 1], ["a", "b"], name="held")
    for row, name in enumerate(("class0", "class1")):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels[row].permute(1, 2, 0).contiguous().numpy()).save(tmp_path / name / "0.png")
    own, files = (load_tensors(images, shorter_side=24).pixels for images in (held, image_set(tmp_path)))
    assert own.shape == files.shape == (2, 3, 24, 40)
    assert (own.int() - files.int()).abs().max() <= 1


def test_roles_become_queries() -> None:
    source = data.ArrayImages(torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    images = ImageSet(source, [0, 0, 1, 1], ["a", "b"], name="shop", roles=["query", "gallery", "query", "gallery"])
    loaded = load_tensors(images, shorter_side=None)
    assert loaded.queries is not None
    assert loaded.queries.tolist() == [True, False, True, False]
    cut = loaded.of_classes([1])
    assert cut.queries is not None
    assert cut.queries.tolist() == [True, False]


def test_cutting_a_set_shares_its_pixels() -> None:
    whole = TensorSet.of(torch.zeros(6, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2, 0, 1, 2]))
    part = whole.of_classes([2, 1])
    assert part.pixels.data_ptr() == whole.pixels.data_ptr()
    assert part.rows.tolist() == [1, 2, 4, 5]
    assert part.labels.tolist() == [0, 1, 0, 1]
    # A cut of a cut speaks of the labels of the first cut.
    assert part.of_classes([1]).rows.tolist() == [2, 5]


def test_what_does_not_fit_is_refused() -> None:
    pixels = torch.zeros(3, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="3 rows need as many labels, got 2"):
        TensorSet.of(pixels, torch.tensor([0, 1]))
    whole = TensorSet.of(pixels, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="rows must name some of the 3 images"):
        whole.of_classes([7])
    images = ragged()
    with pytest.raises(ValueError, match="several sizes need the transform 'crop'"):
        TensorSet(images.pixels, images.labels, images.rows, images.sizes)


SIDE = 12


def ragged(**fields) -> TensorSet:
    """Return 24 images of 6 classes, each of its own size in a frame of 40 x 50."""
    generator = torch.Generator().manual_seed(5)
    pixels = torch.randint(256, (24, 3, 40, 50), dtype=torch.uint8, generator=generator)
    sizes = torch.stack([torch.randint(20, side + 1, (24,), generator=generator) for side in (40, 50)], dim=1)
    rows = torch.randperm(24, generator=generator)
    return TensorSet(pixels, torch.arange(24) % 6, rows, sizes, transform="crop", size=SIDE, **fields)


def plainly(images: TensorSet, places: torch.Tensor, seed: int, step: int, flip: float = 0.5) -> torch.Tensor:
    """Draw and cut as the numbers of a seed and a step have it, one operation after the other."""
    rows = images.rows[places]
    generator = torch.Generator().manual_seed(mixed_seed(seed, step, 2))
    boxes = draw_crops(images.sizes[rows], generator)
    return resample(images.pixels[rows], boxes, SIDE, torch.rand(len(rows), generator=generator) < flip)


@pytest.mark.parametrize("classes", [None, [1, 4], [0, 2, 3, 5]])
@pytest.mark.parametrize(("seed", "step"), [(0, 0), (0, 7), (3, 7)])
def test_a_step_sees_the_crops_of_its_seed(classes: list[int] | None, seed: int, step: int) -> None:
    images = ragged() if classes is None else ragged().of_classes(classes)
    places = torch.tensor([3, 0, 5, 3])
    assert torch.equal(images.training_images(places, seed, step), plainly(images, places, seed, step))


@pytest.mark.parametrize("transform", ["crop", "shift", "none"])
def test_processes_together_see_what_one_process_sees(transform: str) -> None:
    images = ragged()
    if transform != "crop":
        images = TensorSet.of(images.pixels, images.labels, transform=transform)
    places = torch.arange(8)
    parts = [images.training_images(places, 0, 1, rank, 2) for rank in range(2)]
    assert torch.equal(torch.cat(parts), images.training_images(places, 0, 1))


def test_images_can_be_flipped_always_and_never() -> None:
    places = torch.arange(6)
    straight, mirrored = (ragged(options={"flip": share}).training_images(places, 0, 0) for share in (0.0, 1.0))
    assert torch.equal(straight, plainly(ragged(), places, 0, 0, flip=0.0))
    assert torch.equal(mirrored, straight.flip(-1))


def test_evaluation_sees_the_centre() -> None:
    images, places = ragged().of_classes([1, 2]), torch.tensor([6, 1])
    rows = images.rows[places]
    wanted = resample(images.pixels[rows], centre_boxes(images.sizes[rows], SIDE), SIDE)
    assert torch.equal(images.evaluation_images(places), wanted)


def test_batches_that_begin_later_go_on_alike() -> None:
    images = ragged()
    whole, later = (
        list(tensor_batches(images, data.ClassBalancedBatches(images.labels, 3, 2, seed=1), first, 9, seed=4))
        for first in (0, 5)
    )
    for batch, expected in zip(later, whole[5:], strict=True):
        assert torch.equal(batch.images, expected.images)
        assert torch.equal(batch.labels, expected.labels)


@pytest.mark.parametrize("transform", ["none", "shift"])
def test_training_on_the_device_is_the_training_of_a_loader(tmp_path: Path, transform: str) -> None:
    config = tiny()
    config.data.transform = transform
    by_loader = fit(config, tmp_path / "loader")
    config.data.resident = True
    on_device = fit(config, tmp_path / "device")
    assert on_device.steps == by_loader.steps
    # Without augmentation the same images in the same order; augmentation draws other numbers.
    assert (on_device.curve == by_loader.curve) is (transform == "none")


def test_files_are_trained_on_from_memory(tmp_path: Path) -> None:
    config = tiny(monitor_split="none")
    pictures = draw_pictures(tmp_path / "pictures", classes=4, images=3, side=20, ragged=True)
    config.data = DataConfig("folder", str(pictures), {"fractions": [0.5, 0.0, 0.5]}, 2, 2, "crop", resident=True)
    config.model.backbone_options["pixels"] = {"size": 16, "resize": 20}
    result = fit(config, tmp_path / "run")
    assert (result.classes, result.queries) == (2, 6)


def test_a_module_of_the_caller_needs_no_head(tmp_path: Path) -> None:
    class Means(torch.nn.Linear):
        out_dim = 4

        def freeze(self, freeze: str) -> None:
            """Change nothing."""

        def embed(self, images: torch.Tensor) -> Embedded:
            return Embedded(torch.nn.functional.normalize(self(images.mean((2, 3)))))

    maps = TensorSet.of(torch.randn(24, 5, 3, 3), torch.arange(24) % 6)
    config = tiny()
    config.data.classes_per_batch, config.optimiser.multipliers = 6, {}
    result = fit(config, tmp_path / "run", model=Means(5, 4), sets={"train": maps, "validation": maps, "test": maps})
    assert result.queries == 24


def test_sets_and_models_of_the_caller_are_trained(tmp_path: Path) -> None:
    maps = TensorSet.of(torch.randn(24, 5, 3, 3), torch.arange(24) % 6)
    config = tiny()
    config.data.classes_per_batch, config.optimiser.multipliers = 6, {}
    torch.manual_seed(0)
    model = FeatureMapEmbedder(5, "gsp", 4, prototypes=3)
    result = fit(config, tmp_path / "run", model=model, sets={"train": maps, "validation": maps, "test": maps})
    assert result.queries == 24
    assert set(result.learned) == {"mu", "epsilon"}
    assert len(result.mean_weights) == 9
    again = FeatureMapEmbedder(5, "gsp", 4, prototypes=3)
    assert fit(config, tmp_path / "run", model=again, sets={}) == result
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    with pytest.raises(ValueError, match="needs the split validation"):
        fit(config, tmp_path / "other", model=model, sets={"train": maps, "test": maps})
