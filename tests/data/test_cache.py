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

from gspool.data import FileImages, ImageSet, cache, cached
from gspool.data.decode import BrokenImageError, decode


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def pictures(tmp_path):
    """Ten pictures of different sizes, noise, so that a byte in the wrong place shows."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(10):
        shape = (20 + 3 * number, 31 - 2 * number, 3)
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(paths[-1])
    return ImageSet(FileImages(paths), [0, 1] * 5, ("even", "odd"), name="toy")


def decoded(pictures, row, side=256):
    return decode(pictures.images.paths[row], side)


@pytest.mark.parametrize("again", ["same object", "another process", "by pickle"])
def test_the_second_epoch_decodes_nothing_and_sees_the_same(pictures, folder, monkeypatch, again):
    kept = cached(pictures, folder, shorter_side=16)
    expected = [decoded(pictures, row, 16) for row in range(10)]
    assert all(map(torch.equal, expected, (image for image, _ in kept)))

    def refuse(path, *how):
        raise AssertionError(f"{path} was decoded again")

    monkeypatch.setattr(cache, "decode", refuse)
    if again == "another process":
        kept = cached(pictures, folder, shorter_side=16)
    elif again == "by pickle":
        kept = pickle.loads(pickle.dumps(kept))
    assert kept.images.count() == 10
    assert all(map(torch.equal, expected, (image for image, _ in kept)))
    assert kept.labels.tolist() == pictures.labels.tolist()
    # Whoever changes an image does not change the cache.
    kept[0][0].fill_(7)
    assert torch.equal(kept[0][0], expected[0])
    with pytest.raises(IndexError):
        kept.images[10]


def test_sets_that_overlap_share_their_images(pictures, folder):
    part = cached(pictures.subset([7, 2]), folder, shorter_side=None)
    assert torch.equal(part[0][0], decoded(pictures, 7, None))
    assert part.describe(0) == str(pictures.images.paths[7])
    other = ImageSet(FileImages(pictures.images.paths[5:][::-1]), [0] * 5, ("a",), name="toy")
    assert cached(other, folder, shorter_side=None).images.count() == 1


def test_another_resize_or_content_is_stored_apart(pictures, folder):
    fill(pictures, folder, range(10), shorter_side=16)
    assert cached(pictures, folder, shorter_side=17).images.count() == 0
    assert cached(pictures, folder, shorter_side=16, interpolation="bicubic").images.count() == 0
    Image.new("RGB", (20, 20)).save(pictures.images.paths[3])
    os.utime(pictures.images.paths[4], ns=(time.time_ns(), time.time_ns() + 10**9))
    assert cached(pictures, folder, shorter_side=16).images.count() == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_the_limit_is_kept_and_what_is_past_it_is_decoded(pictures, folder, workers):
    sizes = [12 + decoded(pictures, row, 16).numel() for row in range(10)]
    limit = sum(sizes[:4])
    kept = cached(pictures, folder, shorter_side=16, max_bytes=limit)
    for index, (image, _) in enumerate(DataLoader(kept, batch_size=None, num_workers=workers)):
        assert torch.equal(image, decoded(pictures, index, 16))
    before = used(folder)
    # Workers that write at the same moment may each store one image more; one process keeps the limit exactly.
    assert 0 < before <= limit + workers * max(sizes)
    # What is stored counts for the next process too.
    assert len(list(cached(pictures, folder, shorter_side=16, max_bytes=limit))) == 10
    assert used(folder) <= max(before, limit)
    for name in ("max_bytes", "folder_bytes"):
        with pytest.raises(ValueError, match="must not be negative"):
            cached(pictures, folder, **{name: -1})


@pytest.mark.parametrize("damage", ["changed", "cut", "empty", "removed"])
def test_a_damaged_or_removed_file_is_noticed_and_written_again(pictures, folder, damage):
    kept = cached(pictures, folder)
    expected = kept[4][0].clone()
    (file,) = folder.iterdir()
    sound = file.read_bytes()
    if damage == "removed":
        file.unlink()
        folder.rmdir()
    else:
        changed = {"changed": sound[:50] + bytes([sound[50] ^ 1]) + sound[51:], "cut": sound[:-1], "empty": b""}
        file.write_bytes(changed[damage])
    assert torch.equal(kept[4][0], expected)
    assert file.read_bytes() == sound


def test_a_writer_killed_before_the_end_does_no_harm(pictures, folder, monkeypatch):
    def die(self, target):
        raise KeyboardInterrupt

    kept = cached(pictures, folder)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            kept[0]
    again = cached(pictures, folder)
    assert again.images.count() == 0
    assert torch.equal(again[0][0], decoded(pictures, 0))


def fill(pictures, folder, order, **options):
    # As DataLoader's workers do: a fork inherits the pool of threads without its threads, and would wait for them.
    torch.set_num_threads(1)
    kept = cached(pictures, folder, **options)
    for index in order:
        if not torch.equal(kept[index][0], decoded(pictures, index, options.get("shorter_side", 256))):
            raise SystemExit(1)


def test_processes_race_without_harm(pictures, folder):
    context = multiprocessing.get_context("fork")
    orders = [list(range(10)), list(range(9, -1, -1)), [5, 5, 5, 0, 9, 1, 8]]
    racers = [context.Process(target=fill, args=(pictures, folder, order * 3)) for order in orders]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0, 0, 0]
    assert cached(pictures, folder).images.count() == len(list(folder.iterdir())) == 10


def test_a_full_disk_costs_speed_and_other_trouble_is_not_hidden(pictures, folder, monkeypatch):
    def failing(number):
        def fail(*arguments):
            raise OSError(number, os.strerror(number))

        return fail

    kept = cached(pictures, folder)
    monkeypatch.setattr(Path, "write_bytes", failing(errno.ENOSPC))
    with pytest.warns(UserWarning, match=r"cannot grow .*No space left on device.*decoded each time"):
        assert torch.equal(kept[0][0], decoded(pictures, 0))
    # Told once; a warning for every image would be an error here.
    assert torch.equal(kept[1][0], decoded(pictures, 1))
    assert kept.images.count() == 0
    monkeypatch.setattr(Path, "write_bytes", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        cached(pictures, folder)[0]


def test_a_broken_image_is_named_whenever_it_is_asked_for(pictures, folder, jpeg_bytes):
    pictures.images.paths[2].unlink()
    pictures.images.paths[5].write_bytes(jpeg_bytes[: len(jpeg_bytes) // 2])
    kept = cached(pictures, folder)
    for _ in range(2):
        with pytest.raises(BrokenImageError, match=r"2\.png: there is no such file"):
            kept[2]
        with pytest.raises(BrokenImageError, match=r"5\.png: damaged"):
            kept[5]
    assert torch.equal(kept[6][0], decoded(pictures, 6))


# ------------------------------------------------------------------------------------------ the folder and its limit


def names(folder):
    return {file.name for file in folder.iterdir()}


def used(folder):
    return sum(file.stat().st_size for file in folder.iterdir())


def age(files, days):
    for file in files:
        os.utime(file, (time.time() - days * 86400,) * 2)


def test_the_longest_unused_images_of_other_sets_make_room(pictures, folder):
    folder.mkdir()
    sets = []
    for side, days in ((20, 3), (21, 2), (22, 1)):
        before = names(folder)
        fill(pictures, folder, range(10), shorter_side=side)
        sets.append(names(folder) - before)
        age((folder / name for name in sets[-1]), days)
    used_again, oldest, younger = sets
    limit = used(folder) - 1
    (folder / "notes.txt").write_text("of somebody else")
    for name in ("0" * 32 + ".pixels", "1" * 32 + "." + "a" * 32 + ".part", "2" * 32 + ".index"):
        (folder / name).touch()
        age([folder / name], 9)
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


def test_files_can_be_read_by_whom_the_umask_allows(pictures, folder):
    mask = os.umask(0o002)
    try:
        cached(pictures, folder)[0]
    finally:
        os.umask(mask)
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o664}


def test_the_default_place_is_under_the_data_and_one_that_cannot_be_written_is_told(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("GSPOOL_DATA", str(tmp_path / "home"))
    cached(pictures)[0]
    assert len(list((tmp_path / "home" / "decoded").iterdir())) == 1
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot be stored in .*file.decoded .*GSPOOL_DATA.*--data\.cache false"):
        cached(pictures, tmp_path / "file" / "decoded")
