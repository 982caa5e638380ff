"""Stanford Online Products: 11,318 classes to train on, 11,316 to test on (Supp. "Datasets")."""

from __future__ import annotations

from pathlib import Path

from gspool.data.benchmark import Benchmark, Count, Entry, assemble, locate, official_part, present
from gspool.data.download import Archive
from gspool.data.image_set import ImageSet, Split

SOP = Benchmark(
    name="sop",
    folder="Stanford_Online_Products",
    marks=("Ebay_train.txt",),
    layout="  Stanford_Online_Products/Ebay_train.txt\n  Stanford_Online_Products/Ebay_test.txt\n"
    "  Stanford_Online_Products/bicycle_final/*.JPG ... (12 folders)",
    page="https://cvgl.stanford.edu/projects/lifted_struct/",
    archive=Archive(
        url="ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
        md5="7f73d41a2f44250d4779881525aea32e",
        file_name="Stanford_Online_Products.zip",
        folder="Stanford_Online_Products",
    ),
)
COUNTS = {"train": Count(59_551, 11_318), "test": Count(60_502, 11_316)}


def sop(
    root: Path,
    split: Split,
    *,
    fold: int | None = None,
    folds: int = 4,
    allow_partial: bool = False,
    download: bool = False,
) -> ImageSet:
    """Read Stanford Online Products from ``Ebay_train.txt`` and ``Ebay_test.txt``.

    Raises:
        FileNotFoundError: if the data set is not under ``root``.
        ValueError: if images are missing and ``allow_partial`` is not set, or a line of a list is not as published.
    """
    part = official_part("sop", split, fold)
    folder = locate(SOP, root, download)
    table = folder / f"Ebay_{part}.txt"
    entries = []
    # The first line names the columns: image_id class_id super_class_id path.
    for row, line in enumerate(table.read_text(encoding="utf-8").splitlines()[1:], start=2):
        fields = line.split()
        if len(fields) != 4:
            raise ValueError(f"{table}, line {row}: expected image_id class_id super_class_id path, got {line!r}")
        entries.append(Entry(folder / fields[3], f"product {fields[1]}"))
    return assemble(SOP, present("sop", entries, COUNTS[part], part, allow_partial), split, fold=fold, folds=folds)
