from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from gspool.data import FileImages, ImageSet, cache, cached
from gspool.data.decode import BrokenImageError, decode

# Python 3.12 and later warn when a process with threads forks, as loaders do by default.
FORK_IS_MEANT = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


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


@pytest.mark.parametrize("again", ["same object", "another process", "by pickle"])
def test_the_second_epoch_decodes_nothing_and_sees_the_same(
    pictures: ImageSet, folder: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    kept = cached(pictures, folder, shorter_side=16)
    expected = [decode(path, 16) for path in pictures.images.paths]
    first = [image for image, _ in kept]

    def refuse(path: Path, *how: object) -> torch.Tensor:
        raise AssertionError(f"{path} was decoded again")

    monkeypatch.setattr(cache, "decode", refuse)
    if again == "another process":
        kept = cached(pictures, folder, shorter_side=16)
    elif again == "by pickle":
        kept = pickle.loads(pickle.dumps(kept))
    assert kept.images.count() == 10
    for one, two, (three, _) in zip(expected, first, kept, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    assert kept.labels.tolist() == pictures.labels.tolist()
    with pytest.raises(IndexError):
        kept.images[10]


def test_images_can_be_changed_without_changing_the_cache(pictures: ImageSet, folder: Path) -> None:
    kept = cached(pictures, folder)
    before = kept[0][0].clone()
    for _ in range(2):
        kept[0][0].fill_(7)
    assert torch.equal(kept[0][0], before)


def test_sets_that_overlap_share_their_images(pictures: ImageSet, folder: Path) -> None:
    part = cached(pictures.subset([7, 2]), folder, shorter_side=None)
    assert torch.equal(part[0][0], decode(pictures.images.paths[7]))
    assert part.describe(0) == str(pictures.images.paths[7])
    paths = pictures.images.paths[5:][::-1]
    assert (
        cached(ImageSet(FileImages(paths), [0] * 5, ("a",), name="toy"), folder, shorter_side=None).images.count() == 1
    )


def test_another_resize_or_content_is_stored_apart(pictures: ImageSet, folder: Path) -> None:
    for _ in cached(pictures, folder, shorter_side=16):
        pass
    assert cached(pictures, folder, shorter_side=17).images.count() == 0
    assert cached(pictures, folder, shorter_side=16, interpolation="bicubic").images.count() == 0
    Image.new("RGB", (20, 20)).save(pictures.images.paths[3])
    os.utime(pictures.images.paths[4], ns=(time.time_ns(), time.time_ns() + 10**9))
    assert cached(pictures, folder, shorter_side=16).images.count() == 8


@FORK_IS_MEANT
@pytest.mark.parametrize("workers", [0, 2])
def test_the_limit_is_kept_and_what_is_past_it_is_decoded(pictures: ImageSet, folder: Path, workers: int) -> None:
    sizes = [12 + decode(path, 16).numel() for path in pictures.images.paths]
    limit = sum(sizes[:4])
    # Workers that write at the same moment may each store one image more; one process keeps the limit exactly.
    exceeded = workers * max(sizes)
    kept = cached(pictures, folder, shorter_side=16, max_bytes=limit)
    for index, (image, _) in enumerate(DataLoader(kept, batch_size=None, num_workers=workers)):
        assert torch.equal(image, decode(pictures.images.paths[index], 16))
    assert 0 < used(folder) <= limit + exceeded
    before = used(folder)
    # What is stored counts for the next process too.
    assert len(list(cached(pictures, folder, shorter_side=16, max_bytes=limit))) == 10
    assert used(folder) <= max(before, limit)
    for name in ("max_bytes", "folder_bytes"):
        with pytest.raises(ValueError, match="must not be negative"):
            cached(pictures, folder, **{name: -1})


@pytest.mark.parametrize("damage", ["changed", "cut", "empty"])
def test_a_damaged_file_is_noticed_and_repaired(pictures: ImageSet, folder: Path, damage: str) -> None:
    kept = cached(pictures, folder)
    expected = kept[4][0].clone()
    (file,) = folder.iterdir()
    sound = file.read_bytes()
    changed = {"changed": sound[:50] + bytes([sound[50] ^ 1]) + sound[51:], "cut": sound[:-1], "empty": b""}
    file.write_bytes(changed[damage])
    assert torch.equal(kept[4][0], expected)
    assert file.read_bytes() == sound


def test_a_writer_killed_before_the_end_does_no_harm(
    pictures: ImageSet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    kept = cached(pictures, folder)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            kept[0]
    again = cached(pictures, folder)
    assert again.images.count() == 0
    assert torch.equal(again[0][0], decode(pictures.images.paths[0], 256))


def fill(pictures: ImageSet, folder: Path, order: list[int]) -> None:
    # As DataLoader's workers do: a fork inherits the pool of threads without its threads, and would wait for them.
    torch.set_num_threads(1)
    kept = cached(pictures, folder)
    for index in order:
        if not torch.equal(kept[index][0], decode(pictures.images.paths[index], 256)):
            raise SystemExit(1)


@FORK_IS_MEANT
def test_processes_race_without_harm(pictures: ImageSet, folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    orders = [list(range(10)), list(range(9, -1, -1)), [5, 5, 5, 0, 9, 1, 8]]
    racers = [context.Process(target=fill, args=(pictures, folder, order * 3)) for order in orders]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0, 0, 0]
    assert cached(pictures, folder).images.count() == len(list(folder.iterdir())) == 10


def failing(number: int) -> Callable[..., int]:
    def fail(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_disk_costs_speed_and_not_the_run(
    pictures: ImageSet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cached(pictures, folder)
    monkeypatch.setattr(Path, "write_bytes", failing(errno.ENOSPC))
    with pytest.warns(UserWarning, match=r"cannot grow .*No space left on device.*decoded each time"):
        image = kept[0][0]
    assert torch.equal(image, decode(pictures.images.paths[0], 256))
    # Told once; a warning for every image would be an error here.
    assert torch.equal(kept[1][0], decode(pictures.images.paths[1], 256))
    assert kept.images.count() == 0


def test_another_trouble_of_the_disk_is_not_hidden(
    pictures: ImageSet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_bytes", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        cached(pictures, folder)[0]


def test_a_broken_image_is_named_whenever_it_is_asked_for(pictures: ImageSet, folder: Path, jpeg_bytes: bytes) -> None:
    missing, cut = pictures.images.paths[2], pictures.images.paths[5]
    missing.unlink()
    cut.write_bytes(jpeg_bytes[: len(jpeg_bytes) // 2])
    kept = cached(pictures, folder)
    for _ in range(2):
        with pytest.raises(BrokenImageError, match=r"2\.png: there is no such file"):
            kept[2]
        with pytest.raises(BrokenImageError, match=r"5\.png: damaged"):
            kept[5]
    assert torch.equal(kept[6][0], decode(pictures.images.paths[6], 256))


# ------------------------------------------------------------------------------------------ the folder and its limit


def filled(pictures: ImageSet, folder: Path, side: int, age: float, **limits: int) -> set[str]:
    """Fill the cache as a process of ``age`` days ago did; return the names of its files."""
    before = names(folder) if folder.exists() else set()
    for _ in cached(pictures, folder, shorter_side=side, **limits):
        pass
    own = names(folder) - before
    for name in own:
        os.utime(folder / name, (time.time() - age * 86400,) * 2)
    return own


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def used(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_the_longest_unused_images_of_other_sets_make_room(pictures: ImageSet, folder: Path) -> None:
    used_again, oldest, younger = (filled(pictures, folder, side, age) for side, age in ((20, 3), (21, 2), (22, 1)))
    limit = used(folder) - 1
    (folder / "notes.txt").write_text("of somebody else")
    for name, age in (("0" * 32 + ".pixels", 9), ("1" * 32 + "." + "a" * 32 + ".part", 9), ("2" * 32 + ".index", 9)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age * 86400,) * 2)
    (folder / f"{'3' * 32}.{'a' * 32}.part").touch()  # perhaps being written
    cached(pictures, folder, shorter_side=20)  # opened anew: now the one used last
    assert oldest | younger < names(folder)
    cached(pictures, folder, shorter_side=19, folder_bytes=limit)
    left = names(folder)
    assert used_again | younger < left
    assert len(oldest & left) == 9
    assert {name[0] for name in left - used_again - younger - oldest} == {"n", "3"}
    # Its own images stay, whatever the limit.
    cached(pictures, folder, shorter_side=20, folder_bytes=0)
    assert used_again < names(folder)
    assert not younger & names(folder)


def test_a_folder_that_is_removed_under_a_process_costs_a_decode(pictures: ImageSet, folder: Path) -> None:
    kept = cached(pictures, folder, shorter_side=20)
    expected = kept[0][0]
    (file,) = folder.iterdir()
    file.unlink()
    folder.rmdir()
    assert torch.equal(kept[0][0], expected)
    assert kept.images.count() == 1


def test_files_can_be_read_by_whom_the_umask_allows(pictures: ImageSet, folder: Path) -> None:
    mask = os.umask(0o002)
    try:
        cached(pictures, folder)[0]
    finally:
        os.umask(mask)
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o664}


def test_the_default_place_is_under_the_data_and_one_that_cannot_be_written_is_told(
    pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSPOOL_DATA", str(tmp_path / "home"))
    cached(pictures)[0]
    assert len(list((tmp_path / "home" / "decoded").iterdir())) == 1
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot be stored in .*file.decoded .*GSPOOL_DATA.*--data\.cache false"):
        cached(pictures, tmp_path / "file" / "decoded")
