"""In-shop clothes retrieval: a training part, and a test part of queries and a gallery (Supp. "Datasets")."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gspool.data.benchmark import Benchmark, Count, Entry, lines_of
from gspool.data.image_set import GALLERY, QUERY

MARKS = ("list_eval_partition.txt", "Eval/list_eval_partition.txt")


def _entries(folder: Path, part: str) -> Iterator[Entry]:
    table = next(folder / mark for mark in MARKS if (folder / mark).exists())
    pictures = folder / "Img" if (folder / "Img").is_dir() else folder
    # The first two lines are the number of images and the names of the columns.
    for name, item, status in lines_of(table, "image_name item_id train|query|gallery", skip=2):
        if (status == "train") == (part == "train"):
            yield Entry(pictures / name, item, None if status == "train" else status)


inshop = Benchmark(
    name="inshop",
    folder="In-shop Clothes Retrieval Benchmark",
    marks=MARKS,
    layout="  Eval/list_eval_partition.txt (or list_eval_partition.txt)\n"
    "  Img/img/WOMEN/... and Img/img/MEN/... (or img/WOMEN/...), from the archive img.zip of 256 x 256 images",
    page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    counts={"train": Count(25_882, 3_997), QUERY: Count(14_218, 3_985), GALLERY: Count(12_612, 3_985)},
    read=_entries,
)
