"""In-shop clothes retrieval: train, and a test part of queries and a gallery (Supp. "Datasets")."""

from __future__ import annotations

from pathlib import Path

from gspool.data.benchmark import Benchmark, Count, Entry, assemble, locate, official_part, present
from gspool.data.image_set import GALLERY, QUERY, ImageSet, Split

INSHOP = Benchmark(
    name="inshop",
    folder="In-shop Clothes Retrieval Benchmark",
    marks=("list_eval_partition.txt", "Eval/list_eval_partition.txt"),
    layout="  Eval/list_eval_partition.txt (or list_eval_partition.txt)\n"
    "  Img/img/WOMEN/... and Img/img/MEN/... (or img/WOMEN/...), from the archive img.zip of 256 x 256 images",
    page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
)
COUNTS = {"train": Count(25_882, 3_997), QUERY: Count(14_218, 3_985), GALLERY: Count(12_612, 3_985)}


def inshop(
    root: Path,
    split: Split,
    *,
    fold: int | None = None,
    folds: int = 4,
    allow_partial: bool = False,
    download: bool = False,
) -> ImageSet:
    """Read In-shop from ``list_eval_partition.txt``; the test set carries the roles query and gallery.

    Raises:
        FileNotFoundError: if the data set is not under ``root``.
        ValueError: if images are missing and ``allow_partial`` is not set, or a line of the list is not as published.
    """
    part = official_part("inshop", split, fold)
    folder = locate(INSHOP, root, download)
    table = next(folder / mark for mark in INSHOP.marks if (folder / mark).exists())
    pictures = folder / "Img" if (folder / "Img").is_dir() else folder
    listed: dict[str, list[Entry]] = {"train": [], QUERY: [], GALLERY: []}
    # The first two lines are the number of images and the names of the columns.
    for row, line in enumerate(table.read_text(encoding="utf-8").splitlines()[2:], start=3):
        fields = line.split()
        if len(fields) != 3 or fields[2] not in listed:
            raise ValueError(f"{table}, line {row}: expected image_name item_id train|query|gallery, got {line!r}")
        name, item, status = fields
        listed[status].append(Entry(pictures / name, item, None if status == "train" else status))
    entries: list[Entry] = []
    for wanted in ("train",) if part == "train" else (QUERY, GALLERY):
        entries += present("inshop", listed[wanted], COUNTS[wanted], wanted, allow_partial)
    return assemble(INSHOP, entries, split, fold=fold, folds=folds)
