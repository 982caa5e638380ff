"""Oxford Flowers-102: classes 1 to 51 for training, 52 to 102 for testing, all images of a class together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gspool.data.benchmark import Benchmark, Count, Entry, Published, read_matlab

TRAIN_CLASSES = 51
LABELS = "imagelabels.mat"


def _entries(folder: Path, part: str) -> list[Entry]:
    listed = _from_labels(folder) if (folder / LABELS).exists() else _from_class_folders(folder)
    chosen = ((number, path) for number, path in listed if (number <= TRAIN_CLASSES) == (part == "train"))
    # Ordered by class and file name: folds and labels do not depend on the layout.
    return [Entry(path, str(number)) for number, path in sorted(chosen, key=lambda row: (row[0], row[1].name))]


def _from_labels(folder: Path) -> Iterator[tuple[int, Path]]:
    """Read the official layout; its own split, setid.mat, is of images and is ignored."""
    for row, number in enumerate(read_matlab(folder / LABELS)["labels"], start=1):
        yield int(number), folder / "jpg" / f"image_{row:05d}.jpg"


def _from_class_folders(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.glob("*/*/*.jpg"):
        if path.parent.parent.name in ("train", "valid", "test") and path.parent.name.isdecimal():
            yield int(path.parent.name), path


flowers = Benchmark(
    Published(
        name="flowers",
        folder="flowers-102",
        marks=(LABELS, "train/1"),
        layout="  either  flowers-102/imagelabels.mat and flowers-102/jpg/image_00001.jpg ...\n"
        "  or      {train,valid,test}/CLASS/*.jpg with classes 1 to 102",
        page="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    ),
    {"train": Count(3_493, 51), "test": Count(4_696, 51)},
    _entries,
)
