from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from gspool import data
from gspool.data import FileImages, ImageSet, cache, cache_files, cached
from gspool.data.decode import BrokenImageError, Interpolation, decode

# Python 3.12 and later warn when a process with threads forks, as loaders do by default.
FORK_IS_MEANT = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def pictures(tmp_path: Path) -> ImageSet:
    """Ten pictures of different sizes, noise, so that a byte in the wrong place shows."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(10):
        shape = (20 + 3 * number, 31 - 2 * number, 3)
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(paths[-1])
    return ImageSet(FileImages(paths), [0, 1] * 5, ("even", "odd"), name="toy")


def forbid_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *how: object) -> torch.Tensor:
        raise AssertionError(f"{path} was decoded again")

    monkeypatch.setattr(cache, "decode", refuse)


def test_the_second_epoch_decodes_nothing_and_sees_the_same(
    pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cached(pictures, tmp_path / "cache", shorter_side=16)
    expected = [decode(path, 16) for path in pictures.images.paths]
    first = [image for image, _ in kept]
    assert kept.images.count() == 10
    forbid_decoding(monkeypatch)
    second = [image for image, _ in kept]
    for one, two, three in zip(expected, first, second, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    assert kept.labels.tolist() == pictures.labels.tolist()


def test_the_cache_survives_the_process_that_filled_it(
    pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in cached(pictures, tmp_path / "cache"):
        pass
    forbid_decoding(monkeypatch)
    again = cached(pictures, tmp_path / "cache")
    assert again.images.count() == 10
    assert [image.shape for image, _ in again] == [decode(path, 256).shape for path in pictures.images.paths]


def test_images_can_be_changed_without_changing_the_cache(pictures: ImageSet, tmp_path: Path) -> None:
    kept = cached(pictures, tmp_path / "cache")
    kept[0]
    before = kept[0][0].clone()
    kept[0][0].fill_(7)
    assert torch.equal(kept[0][0], before)


def test_parts_of_one_list_share_one_cache(pictures: ImageSet, tmp_path: Path) -> None:
    part = cached(pictures.subset([7, 2]), tmp_path / "cache", shorter_side=None)
    assert torch.equal(part[0][0], decode(pictures.images.paths[7]))
    part[1]
    whole = cached(pictures, tmp_path / "cache", shorter_side=None)
    assert whole.images.count() == 2
    assert len(list((tmp_path / "cache").glob("*.pixels"))) == 1
    assert part.describe(0) == str(pictures.images.paths[7])


def test_the_bound_is_kept_and_what_is_past_it_is_decoded(pictures: ImageSet, tmp_path: Path) -> None:
    sizes = [decode(path, 16).numel() for path in pictures.images.paths]
    bound = sum(sizes[:4]) + 1
    kept = cached(pictures, tmp_path / "cache", shorter_side=16, max_bytes=bound)
    for index in range(10):
        assert torch.equal(kept[index][0], decode(pictures.images.paths[index], 16))
    assert kept.images.count() == 4
    (file,) = (tmp_path / "cache").glob("*.pixels")
    assert file.stat().st_size == sum(sizes[:4]) <= bound
    nothing = cached(pictures, tmp_path / "none", max_bytes=0)
    assert nothing[3][0].dtype == torch.uint8
    assert nothing.images.count() == 0
    with pytest.raises(ValueError, match="must not be negative"):
        cached(pictures, tmp_path / "cache", max_bytes=-1)


def test_another_list_resize_or_content_is_another_cache(pictures: ImageSet, tmp_path: Path) -> None:
    def stem(images: ImageSet, side: int = 16, interpolation: Interpolation = "bilinear") -> str:
        kept = cached(images, tmp_path / "cache", shorter_side=side, interpolation=interpolation)
        return kept.images.stem.name

    first = stem(pictures)
    assert stem(pictures) == first
    assert stem(pictures, 17) != first
    assert stem(pictures, interpolation="bicubic") != first
    paths = pictures.images.paths
    assert stem(ImageSet(FileImages(paths[::-1]), [0] * 10, ("a",), name="toy")) != first
    Image.new("RGB", (20, 20)).save(paths[3])
    assert stem(pictures) != first
    changed = stem(pictures)
    os.utime(paths[3], ns=(time.time_ns(), time.time_ns() + 10**9))
    assert stem(pictures) != changed


def test_a_damaged_record_is_noticed_and_repaired(pictures: ImageSet, tmp_path: Path) -> None:
    kept = cached(pictures, tmp_path / "cache")
    expected = kept[4][0].clone()
    (file,) = (tmp_path / "cache").glob("*.pixels")
    with file.open("r+b") as pixels:
        pixels.seek(int(kept.images.starts[4]) + 5)
        pixels.write(b"\x00\x01\x02\x03\x04\x05\x06\x07")
    assert torch.equal(kept[4][0], expected)
    with file.open("rb") as pixels:
        pixels.seek(int(kept.images.starts[4]))
        stored = np.frombuffer(pixels.read(expected.numel()), dtype=np.uint8)
    assert np.array_equal(stored, expected.permute(1, 2, 0).numpy().ravel())


def test_a_writer_killed_between_pixels_and_index_does_no_harm(
    pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cached(pictures, tmp_path / "cache")
    real = cache_files.write_at

    def die_before_the_index(file: int, content: memoryview, start: int) -> None:
        if len(content) == 8:
            raise KeyboardInterrupt
        real(file, content, start)

    monkeypatch.setattr(cache_files, "write_at", die_before_the_index)
    with pytest.raises(KeyboardInterrupt):
        kept[0]
    monkeypatch.setattr(cache_files, "write_at", real)
    again = cached(pictures, tmp_path / "cache")
    assert again.images.count() == 0
    assert torch.equal(again[0][0], decode(pictures.images.paths[0], 256))


@FORK_IS_MEANT
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_fill_and_read_one_cache(pictures: ImageSet, tmp_path: Path, context: str) -> None:
    kept = cached(pictures.subset(list(range(10)) * 3), tmp_path / "cache", shorter_side=16)
    kept[0]  # a file that is open in the parent must not trouble the workers
    # One worker where each costs an import of torch; two to race where they are cheap.
    workers = {"fork": 2, "spawn": 1}[context]
    loader = DataLoader(kept, batch_size=None, num_workers=workers, multiprocessing_context=context)
    for number, (image, _) in enumerate(loader):
        assert torch.equal(image, decode(pictures.images.paths[number % 10], 16))
    assert kept.images.source.count() == 10


def fill(pictures: ImageSet, folder: Path, order: list[int]) -> None:
    # As DataLoader's workers do: a fork inherits the pool of threads without its threads, and would wait for them.
    torch.set_num_threads(1)
    kept = cached(pictures, folder)
    for index in order:
        if not torch.equal(kept[index][0], decode(pictures.images.paths[index], 256)):
            raise SystemExit(1)


@FORK_IS_MEANT
def test_processes_race_without_harm(pictures: ImageSet, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    orders = [list(range(10)), list(range(9, -1, -1)), [5, 5, 5, 0, 9, 1, 8]]
    racers = [context.Process(target=fill, args=(pictures, tmp_path / "cache", order * 3)) for order in orders]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0, 0, 0]
    assert cached(pictures, tmp_path / "cache").images.count() == 10
    assert sorted(file.suffix for file in (tmp_path / "cache").iterdir()) == [".index", ".npy", ".pixels"]


def test_a_full_disk_costs_speed_and_not_the_run(
    pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cached(pictures, tmp_path / "cache")

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.warns(UserWarning, match=r"cannot grow .*No space left on device.*decoded each time"):
        image = kept[0][0]
    assert torch.equal(image, decode(pictures.images.paths[0], 256))
    # Told once; a warning for every image would be an error here.
    assert torch.equal(kept[1][0], decode(pictures.images.paths[1], 256))
    assert kept.images.count() == 0


def test_another_trouble_of_the_disk_is_not_hidden(
    pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    kept = cached(pictures, tmp_path / "cache")
    monkeypatch.setattr(os, "pwrite", broken)
    with pytest.raises(OSError, match="Input/output error"):
        kept[0]


def test_a_broken_image_is_named_whenever_it_is_asked_for(
    pictures: ImageSet, tmp_path: Path, jpeg_bytes: bytes
) -> None:
    missing, cut = pictures.images.paths[2], pictures.images.paths[5]
    missing.unlink()
    cut.write_bytes(jpeg_bytes[:200] + jpeg_bytes[200 : len(jpeg_bytes) // 2])
    kept = cached(pictures, tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(BrokenImageError, match=r"2\.png: there is no such file"):
            kept[2]
        with pytest.raises(BrokenImageError, match=r"5\.png: damaged"):
            kept[5]
    assert torch.equal(kept[6][0], decode(pictures.images.paths[6], 256))


def test_images_in_memory_need_no_cache(tmp_path: Path) -> None:
    glyphs = data.create("glyphs", split="test", images_per_class=1)
    assert cached(glyphs, tmp_path / "cache") is glyphs
    assert not (tmp_path / "cache").exists()


def test_the_default_place_is_under_the_data(
    pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSPOOL_DATA", str(tmp_path / "home"))
    cached(pictures)[0]
    assert len(list((tmp_path / "home" / "decoded").glob("*.pixels"))) == 1


def test_an_open_cache_travels_by_pickle(pictures: ImageSet, tmp_path: Path) -> None:
    kept = cached(pictures, tmp_path / "cache")
    expected = kept[3][0]
    again = pickle.loads(pickle.dumps(kept))
    assert torch.equal(again[3][0], expected)


def test_indices_from_the_end_and_past_it(pictures: ImageSet, tmp_path: Path) -> None:
    kept = cached(pictures, tmp_path / "cache").images
    assert torch.equal(kept[-1], kept[9])
    with pytest.raises(IndexError):
        kept[10]
