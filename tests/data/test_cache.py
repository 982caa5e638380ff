from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

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


@pytest.mark.parametrize("same_process", [True, False])
def test_the_second_epoch_decodes_nothing_and_sees_the_same(
    pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_process: bool
) -> None:
    kept = cached(pictures, tmp_path / "cache", shorter_side=16)
    expected = [decode(path, 16) for path in pictures.images.paths]
    first = [image for image, _ in kept]
    forbid_decoding(monkeypatch)
    kept = kept if same_process else cached(pictures, tmp_path / "cache", shorter_side=16)
    assert kept.images.count() == 10
    second = [image for image, _ in kept]
    for one, two, three in zip(expected, first, second, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    assert kept.labels.tolist() == pictures.labels.tolist()


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
def test_workers_fill_and_read_one_cache(pictures: ImageSet, tmp_path: Path) -> None:
    kept = cached(pictures.subset(list(range(10)) * 3), tmp_path / "cache", shorter_side=16)
    kept[0]  # a file that is open in the parent must not trouble the workers
    for number, (image, _) in enumerate(DataLoader(kept, batch_size=None, num_workers=2)):
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


def failing(number: int) -> Callable[..., int]:
    def fail(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_disk_costs_speed_and_not_the_run(
    pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", failing(errno.ENOSPC))
        kept = cached(pictures, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.sizes*"))
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    with pytest.warns(UserWarning, match=r"cannot grow .*No space left on device.*decoded each time"):
        image = kept[0][0]
    assert torch.equal(image, decode(pictures.images.paths[0], 256))
    # Told once; a warning for every image would be an error here.
    assert torch.equal(kept[1][0], decode(pictures.images.paths[1], 256))
    assert kept.images.count() == 0


def test_another_trouble_of_the_disk_is_not_hidden(
    pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cached(pictures, tmp_path / "cache")
    monkeypatch.setattr(os, "pwrite", failing(errno.EIO))
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


# ------------------------------------------------------------------------------------ lists that nobody uses any more


def filled(pictures: ImageSet, folder: Path, side: int, age: float, **bounds: int) -> Path:
    """Fill the cache of one list as a process of ``age`` days ago did, and give the stem of its files."""
    kept = cached(pictures, folder, shorter_side=side, **bounds)
    for _ in kept:
        pass
    stem: Path = kept.images.stem
    for file in folder.glob(f"{stem.name}.*"):
        os.utime(file, (time.time() - age * 86400,) * 2)
    return stem


def stems(folder: Path) -> set[str]:
    return {file.name.split(".")[0] for file in folder.iterdir()}


def room(folder: Path) -> int:
    return sum(512 * file.stat().st_blocks for file in folder.iterdir())


def test_a_new_list_takes_the_room_of_the_longest_unused(pictures: ImageSet, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    used_again = filled(pictures, folder, 20, age=3)
    oldest = filled(pictures, folder, 21, age=2)
    younger = filled(pictures, folder, 22, age=1)
    bound = room(folder)
    assert len(cached(pictures, folder, shorter_side=20)[0]) == 2  # opened anew: now the one used last
    (folder / "notes.txt").write_text("of somebody else")
    new = filled(pictures, folder, 19, age=0, folder_bytes=bound)
    assert stems(folder) == {used_again.name, younger.name, new.name, "notes"}
    assert oldest.name not in stems(folder)


def test_nothing_goes_while_there_is_room(pictures: ImageSet, tmp_path: Path) -> None:
    before = {filled(pictures, tmp_path / "cache", side, age=100).name for side in (20, 21, 22)}
    assert before < stems(filled(pictures, tmp_path / "cache", 23, age=0).parent)


def test_a_list_that_is_there_already_makes_nothing_go(pictures: ImageSet, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    names = {filled(pictures, folder, side, age=5).name for side in (20, 21)}
    filled(pictures, folder, 20, age=0, folder_bytes=0)
    assert stems(folder) == names


def test_a_cache_that_a_process_has_open_stays(pictures: ImageSet, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    in_use = cached(pictures, folder, shorter_side=20)
    expected = in_use[0][0]
    unused = filled(pictures, folder, 21, age=0)
    new = filled(pictures, folder, 22, age=0, folder_bytes=0)
    assert stems(folder) == {in_use.images.stem.name, new.name}
    assert unused.name not in stems(folder)
    assert torch.equal(in_use[0][0], expected)


def test_lists_that_are_old_go_from_a_full_disk(
    pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    old = [filled(pictures, folder, side, age=30 - side) for side in (20, 21)]
    whole = room(folder)

    def disk(place: Path) -> SimpleNamespace:
        return SimpleNamespace(free=whole - room(folder))  # full with these two

    monkeypatch.setattr(cache_files.shutil, "disk_usage", disk)
    new = filled(pictures, folder, 19, age=0)
    assert stems(folder) == {old[1].name, new.name}


def test_a_cache_that_is_removed_under_a_process_costs_a_decode(pictures: ImageSet, tmp_path: Path) -> None:
    kept = cached(pictures, tmp_path / "cache", shorter_side=20)
    expected = kept[0][0]
    for file in (tmp_path / "cache").iterdir():
        file.unlink()
    assert torch.equal(kept[0][0], expected)
    in_a_worker = pickle.loads(pickle.dumps(kept))  # opens the files anew
    assert in_a_worker.images.count() == 0
    assert torch.equal(in_a_worker[0][0], expected)


def test_a_folder_that_changes_every_day_does_not_fill_the_disk(pictures: ImageSet, tmp_path: Path) -> None:
    folder, paths = tmp_path / "cache", pictures.images.paths
    bound = 0
    for day in range(8):
        Image.new("RGB", (40, 40), (day, 0, 0)).save(tmp_path / f"day{day}.png")
        paths = (*paths, tmp_path / f"day{day}.png")
        today = ImageSet(FileImages(paths), [0] * len(paths), ("a",), name="toy")
        newest = filled(today, folder, 30, age=7 - day, folder_bytes=bound or 1 << 30)
        bound = bound or 3 * room(folder)
        assert newest.name in stems(folder)
        assert len(stems(folder)) <= 3
    assert len(stems(folder)) > 1


def test_temporary_files_of_killed_processes_are_removed(pictures: ImageSet, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    for name, age in (("0" * 32, 2), ("1" * 32, 0)):
        file = folder / f"{name}.{'a' * 32}.part"
        file.touch()
        os.utime(file, (time.time() - 3600 * age,) * 2)
    cached(pictures, folder)[0]
    assert [file.name[0] for file in folder.glob("*.part")] == ["1"]  # perhaps being written


def test_files_can_be_read_by_whom_the_umask_allows(pictures: ImageSet, tmp_path: Path) -> None:
    mask = os.umask(0o002)
    try:
        cached(pictures, tmp_path / "cache")[0]
    finally:
        os.umask(mask)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "cache").iterdir()} == {0o664}


def test_a_folder_that_cannot_be_written_is_told_with_a_way_out(pictures: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot be stored in .*file.decoded .*GSPOOL_DATA.*--data\.cache false"):
        cached(pictures, tmp_path / "file" / "decoded")
