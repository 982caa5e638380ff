"""CUB-200-2011: birds, the first 100 classes to train on, the other 100 to test on (Supp. "Datasets")."""

from __future__ import annotations

from pathlib import Path

from gspool.data.benchmark import Benchmark, Count, Entry, assemble, locate, official_part, present
from gspool.data.download import Archive
from gspool.data.image_set import ImageSet, Split

CUB = Benchmark(
    name="cub",
    folder="CUB_200_2011",
    marks=("images.txt",),
    layout="  CUB_200_2011/images.txt\n  CUB_200_2011/image_class_labels.txt\n  CUB_200_2011/images/001.NAME/*.jpg",
    page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    archive=Archive(
        url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        md5="97eceeb196236b17998738112f37df78",
        file_name="CUB_200_2011.tgz",
        folder="CUB_200_2011",
    ),
)
COUNTS = {"train": Count(5_864, 100), "test": Count(5_924, 100)}
TRAIN_CLASSES = 100


def cub(
    root: Path,
    split: Split,
    *,
    fold: int | None = None,
    folds: int = 4,
    allow_partial: bool = False,
    download: bool = False,
) -> ImageSet:
    """Read CUB-200-2011 from ``images.txt`` and ``image_class_labels.txt``.

    Raises:
        FileNotFoundError: if the data set is not under ``root``.
        ValueError: if images are missing and ``allow_partial`` is not set.
    """
    part = official_part("cub", split, fold)
    folder = locate(CUB, root, download)
    label_of = dict(_numbered_lines(folder / "image_class_labels.txt"))
    entries = []
    for number, name in _numbered_lines(folder / "images.txt"):
        if number not in label_of:
            raise ValueError(f"{folder / 'image_class_labels.txt'} has no class for image {number} ({name})")
        if (int(label_of[number]) <= TRAIN_CLASSES) == (part == "train"):
            entries.append(Entry(folder / "images" / name, name.split("/")[0]))
    return assemble(CUB, present("cub", entries, COUNTS[part], part, allow_partial), split, fold=fold, folds=folds)


def _numbered_lines(path: Path) -> list[tuple[str, str]]:
    """Read lines of a number and a value."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line.strip()]
    wrong = next((row for row, pair in enumerate(pairs, start=1) if len(pair) != 2), None)
    if wrong is not None:
        raise ValueError(f"{path}, line {wrong}: expected a number and a value, got {' '.join(pairs[wrong - 1])!r}")
    return [(number, value.strip()) for number, value in pairs]
