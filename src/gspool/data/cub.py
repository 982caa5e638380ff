"""CUB-200-2011: birds, the first 100 classes for training, the other 100 for testing (Supp. "Datasets")."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gspool.data.benchmark import Benchmark, Count, Entry, lines_of
from gspool.data.download import Archive


def _entries(folder: Path, part: str) -> Iterator[Entry]:
    label_of = dict(lines_of(folder / "image_class_labels.txt", "image_id class_id"))
    for number, name in lines_of(folder / "images.txt", "image_id path"):
        if number not in label_of:
            raise ValueError(f"{folder / 'image_class_labels.txt'} has no class for image {number} ({name})")
        yield Entry(folder / "images" / name, name.split("/")[0], number=int(label_of[number]))


cub = Benchmark(
    name="cub",
    folder="CUB_200_2011",
    marks=("images.txt",),
    layout="  CUB_200_2011/images.txt\n  CUB_200_2011/image_class_labels.txt\n  CUB_200_2011/images/001.NAME/*.jpg",
    page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    archive=Archive(
        url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        md5="97eceeb196236b17998738112f37df78",
        sha256="0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
    ),
    counts={"train": Count(5_864, 100), "test": Count(5_924, 100)},
    read=_entries,
    train_classes=100,
)
