"""Stanford Online Products: 11,318 classes for training, 11,316 for testing (Supp. "Datasets")."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gspool.data.benchmark import Benchmark, Count, Entry, lines_of
from gspool.data.download import Archive


def _entries(folder: Path, part: str) -> Iterator[Entry]:
    # The first line names the columns.
    for _, label, _, path in lines_of(folder / f"Ebay_{part}.txt", "image_id class_id super_class_id path", skip=1):
        yield Entry(folder / path, f"product {label}")


sop = Benchmark(
    name="sop",
    folder="Stanford_Online_Products",
    marks=("Ebay_train.txt",),
    layout="  Stanford_Online_Products/Ebay_train.txt\n  Stanford_Online_Products/Ebay_test.txt\n"
    "  Stanford_Online_Products/bicycle_final/*.JPG ... (12 folders)",
    page="https://cvgl.stanford.edu/projects/lifted_struct/",
    archive=Archive(
        url="ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
        md5="7f73d41a2f44250d4779881525aea32e",
    ),
    counts={"train": Count(59_551, 11_318), "test": Count(60_502, 11_316)},
    read=_entries,
)
