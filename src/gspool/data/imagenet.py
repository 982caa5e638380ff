"""ImageNet (ILSVRC2012): the official folders, or WebDataset shards.

Shards are read by the standard library: once their headers are indexed, a tar is random access, so that any step can
begin a run. The `webdataset` library streams shards, and cannot go on in the middle of an epoch bit for bit.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from gspool.data.benchmark import Count, Published, read_matlab
from gspool.data.decode import IMAGE_SUFFIXES, decode
from gspool.data.image_set import ImageSet, Split

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64, UInt8
    from torch import Tensor

COUNTS = {"train": Count(1_281_167, 1_000), "val": Count(50_000, 1_000)}
# What the classes of a flat val/ may be listed in: Caffe's list, Kaggle's, that of the development kit.
LISTS = (
    "val.txt",
    "LOC_val_solution.csv",
    "ILSVRC2012_validation_ground_truth.txt",
    "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt",
)
PUBLISHED = Published(
    name="imagenet",
    folder="imagenet",
    marks=("train", "ILSVRC/Data/CLS-LOC/train"),
    layout="""\
  train/n01440764/*.JPEG           1,000 folders
  val/n01440764/*.JPEG             or val/*.JPEG and a list of classes (val.txt, LOC_val_solution.csv, the devkit)
or WebDataset shards, an image and its class number (KEY.jpg, KEY.cls) each:
  *train*.tar and *val*.tar        or train/*.tar and val/*.tar""",
    page="https://image-net.org/download.php",
)


class ListedImages:
    """Images below a folder, or in shards, decoded on access.

    Names and places are arrays: a million Python objects would be copied by every process that loads images.

    Args:
        root: the folder.
        names: of the images below it; in shards, of the members.
        shards: the shards, if there are any.
        places: (shard, offset, size) of the bytes of every image in them.
    """

    def __init__(
        self, root: Path, names: list[str], shards: Sequence[Path] = (), places: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        self.root, self.shards = root, tuple(shards)
        self.names = np.array([os.fsencode(name) for name in names])
        self.places = np.array(places, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 H W"]:
        if not self.shards:
            return decode(self.describe(index))
        number, offset, size = self.places[index].tolist()
        with self.shards[number].open("rb") as shard:
            shard.seek(offset)
            return decode(shard.read(size), name=self.describe(index))

    def describe(self, index: int) -> str:
        """Return the path of an image; in a shard, the path of the shard and the name in it."""
        where = self.shards[int(self.places[index, 0])] if self.shards else self.root
        return str(where / os.fsdecode(self.names[index]))


class Listed(NamedTuple):
    """The images of one part and their classes."""

    images: ListedImages
    labels: Int64[Tensor, " N"]
    class_names: list[str]


def imagenet(
    root: Path, split: Split, *, held_out: int = 0, labels: str | None = None, allow_partial: bool = False
) -> ImageSet:
    """Return one split: ``test`` is the official validation part, ``validation`` some images of the training part.

    Args:
        root: the folder with train/ and val/ or with the shards, or the folder above it.
        split: ``train``, ``validation`` or ``test``.
        held_out: images of every class that ``train`` leaves out for ``validation``, the last ones.
        labels: the list of the classes of a flat val/, unless it has one of the usual names.
        allow_partial: take what is there instead of all of ImageNet.

    Raises:
        FileNotFoundError: if the data, or the list of classes, is not there.
        ValueError: if images are missing and ``allow_partial`` is not set, a shard or a list is not as described, or
            too few images of a class are left.
    """
    part = "val" if split == "test" else "train"
    listed = _list_part(root, part, labels)
    found = Count(len(listed.images), len(listed.labels.unique()))
    PUBLISHED.check_count(part, found, COUNTS[part], listed.images.root, allow_partial)
    images = ImageSet(*listed, name="imagenet", split=split)
    if split == "test" or (split == "train" and not held_out):
        return images
    if held_out < 1:
        raise ValueError(
            "imagenet has no validation images besides those of the test: hold some of every class out of train with "
            "held_out=10, and train with the same number (in a run: --data.options.held_out 10)"
        )
    counts = images.counts()
    small = ((counts > 0) & (counts <= held_out)).nonzero().flatten().tolist()
    if small:
        raise ValueError(
            f"held_out={held_out} leaves nothing of class {images.class_names[small[0]]}, which has "
            f"{int(counts[small[0]])} images; lower it"
        )
    is_last = _last_of_class(images.labels, held_out)
    return images.subset((is_last if split == "validation" else ~is_last).nonzero().flatten())


def _last_of_class(labels: Int64[Tensor, " N"], count: int) -> Bool[Tensor, " N"]:
    """Return which images are among the last ``count`` of their class."""
    order = labels.argsort(stable=True)
    ends = labels.bincount().cumsum(0)
    is_last = torch.zeros(len(labels), dtype=torch.bool)
    is_last[order] = ends[labels[order]] - torch.arange(len(labels)) <= count
    return is_last


def _list_part(root: Path, part: str, labels: str | None) -> Listed:
    """List the images of ``train`` or ``val``."""
    for place in (root, root / PUBLISHED.folder):
        # First of all: torchvision keeps the official archives, which are no shards, beside the class folders.
        if any(entry.is_dir() for mark in PUBLISHED.marks for entry in (place / mark).glob("[!.]*")):
            break
        shards = sorted([*place.glob(f"*{part}*.tar"), *place.glob(f"{part}/*.tar")])
        if shards:
            return _list_shards(place, tuple(shards), tuple(shard.stat().st_mtime_ns for shard in shards))
    place = PUBLISHED.locate(root, download=False)
    if not (place / "train").is_dir():
        place = place / "ILSVRC" / "Data" / "CLS-LOC"
    classes = sorted(entry.name for entry in os.scandir(place / "train") if entry.is_dir())
    folders = {entry.name for entry in os.scandir(place / part) if entry.is_dir()} if (place / part).is_dir() else set()
    if part == "val" and not folders:
        return _list_flat(place, classes, _found_list(root, place, labels))
    if not folders <= {*classes}:
        raise ValueError(f"{place / part} has the class {min(folders - {*classes})}, which train/ does not have")
    names: list[str] = []
    counts = []
    for name in classes:
        files = _images(place / part / name) if name in folders else []
        names += [f"{part}/{name}/{file}" for file in files]
        counts.append(len(files))
    of_class = torch.arange(len(classes)).repeat_interleave(torch.tensor(counts, dtype=torch.int64))
    return Listed(ListedImages(place, names), of_class, classes)


def _images(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(IMAGE_SUFFIXES))


def _found_list(root: Path, place: Path, labels: str | None) -> Path:
    paths = (
        [Path(labels).expanduser()] if labels else [up / name for up in (place, place.parent, root) for name in LISTS]
    )
    for path in paths:
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"{place / 'val'} has no class folders, and there is no list of classes "
        f"({labels or ', '.join(LISTS)} in {place}); name one with labels=FILE (in a run: --data.options.labels FILE)"
    )


def _list_flat(place: Path, classes: list[str], path: Path) -> Listed:
    """List a val/ without class folders by a list of classes.

    A line is the name of an image and its class (a name, or a number from 0 in the order of the names), or the class
    alone, in the order of the images: a name, or the number of the development kit, whose meta.mat lies beside it.
    Where images are missing, the number at the end of a name, from 1, tells its line.
    """
    names = _images(place / "val")
    number = {name: label for label, name in enumerate(classes)}
    lines = [re.split(r"[\s,]+", line.strip()) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    if all(len(line) == 1 for line in lines):
        if lines[0][0].isdigit():
            synsets = read_matlab(path.with_name("meta.mat"))["synsets"]
            name_of = {str(each.ILSVRC2012_ID): str(each.WNID) for each in synsets}
            lines = [[name_of.get(line[0], line[0])] for line in lines]
        rows = range(1, len(names) + 1) if len(names) == len(lines) else map(_number, names)
        lines = [[name, *lines[row - 1]] for name, row in zip(names, rows, strict=True) if 1 <= row <= len(lines)]
    class_of = {}
    for line in lines:
        label = int(line[1]) if line[1].isdigit() else number.get(line[1], -1)
        if 0 <= label < len(classes):
            class_of[Path(line[0]).stem] = label
    unknown = [name for name in names if Path(name).stem not in class_of]
    if unknown:
        raise ValueError(
            f"{path} has no class of train/ for {len(unknown)} images of {place / 'val'}, the first is {unknown[0]}; "
            "expected lines such as ILSVRC2012_val_00000001.JPEG n01751748"
        )
    own = torch.tensor([class_of[Path(name).stem] for name in names])
    return Listed(ListedImages(place, [f"val/{name}" for name in names]), own, classes)


def _number(name: str) -> int:
    """Return the number at the end of the name of an image; 0 if there is none."""
    digits = re.search(r"\d+$", Path(name).stem)
    return int(digits[0]) if digits else 0


@lru_cache(maxsize=2)
def _list_shards(root: Path, shards: tuple[Path, ...], written: tuple[int, ...]) -> Listed:
    """Index the images of shards by the headers of their members; only class numbers are read.

    There are a million of them, so ``train`` and ``validation`` share the index until a shard is ``written`` again.
    """
    names, places, labels = [], [], []
    for number, shard in enumerate(shards):
        for name, (offset, size), label in _samples(shard):
            names.append(name)
            places.append((number, offset, size))
            labels.append(label)
    class_names = [str(label) for label in range(max(labels, default=-1) + 1)]
    return Listed(ListedImages(root, names, shards, places), torch.tensor(labels, dtype=torch.int64), class_names)


def _samples(shard: Path) -> Iterator[tuple[str, tuple[int, int], int]]:
    """Yield the name, the offset and size, and the class of every image of a shard."""
    found: dict[str, tuple[str, tuple[int, int]]] = {}
    label_of: dict[str, int] = {}
    try:
        with tarfile.open(shard, "r:") as members:
            for member in members:
                folder, _, file = member.name.rpartition("/")
                key, _, ending = file.partition(".")
                key = f"{folder}/{key}"
                if f".{ending.lower()}" in IMAGE_SUFFIXES:
                    found[key] = member.name, (member.offset_data, member.size)
                elif ending == "cls":
                    label_of[key] = int(members.extractfile(member).read())  # type: ignore[union-attr]
    except (tarfile.TarError, ValueError, OSError) as error:
        raise ValueError(
            f"{shard} cannot be read as a shard ({error}); expected an uncompressed tar of KEY.jpg and KEY.cls"
        ) from error
    alone = [name for key, (name, _) in found.items() if key not in label_of]
    if alone:
        raise ValueError(
            f"{shard}: {len(alone)} images have no class, such as {alone[0]}; expected KEY.cls beside each"
        )
    for key, (name, place) in found.items():
        yield name, place, label_of[key]
