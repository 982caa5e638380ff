"""Oxford Flowers-102: classes 1 to 51 for training, 52 to 102 for testing, all images of a class together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gspool.data.benchmark import Benchmark, Count, Entry, read_matlab

LABELS = "imagelabels.mat"


def _entries(folder: Path, part: str) -> Iterator[Entry]:
    if (folder / LABELS).exists():
        # The official split of images, setid.mat, is ignored.
        for row, number in enumerate(read_matlab(folder / LABELS)["labels"], start=1):
            yield Entry(folder / "jpg" / f"image_{row:05d}.jpg", str(number), number=int(number))
        return
    files = (path for split in ("train", "valid", "test") for path in (folder / split).glob("*/*.jpg"))
    for path in sorted(files, key=lambda path: path.name):
        if path.parent.name.isdecimal():
            number = int(path.parent.name)
            yield Entry(path, str(number), number=number)


flowers = Benchmark(
    name="flowers",
    folder="flowers-102",
    marks=(LABELS, "train/1"),
    layout="  either  flowers-102/imagelabels.mat and flowers-102/jpg/image_00001.jpg ...\n"
    "  or      {train,valid,test}/CLASS/*.jpg with classes 1 to 102",
    page="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    counts={"train": Count(3_493, 51), "test": Count(4_696, 51)},
    read=_entries,
    train_classes=51,
)
