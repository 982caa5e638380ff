"""Measure what query expansion and whitening gain over the plain cosine, on labelled corpora of `gspool embed`.

    gspool embed MODEL pictures/ --out vectors.lance                     # class sub-folders
    python benchmarks/rerank.py "MODEL on pictures"=vectors.lance --out results/rerank.json

Half of the pictures of every class are queries, the other half is the corpus; three random halves are averaged. A gain
is in points against the plain cosine on the same halves, with its smallest and largest value.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from gspool.provenance import write_result
from gspool.search.index import Hit, Index, open_index
from gspool.search.index.rerank import Rerank
from gspool.search.index.table import ImageRecord, LanceWriter, vectors_of

SEEDS = range(3)
VARIANTS = {
    "plain cosine": None,
    "average query expansion, 5": Rerank(expand=5, alpha=0.0),
    "alpha query expansion, 5": Rerank(expand=5),
    "alpha query expansion, 10": Rerank(expand=10),
    "whitening, 16 directions": Rerank(whiten=16),
    "whitening, 32 directions": Rerank(whiten=32),
    "whitening, 128 directions": Rerank(whiten=128),
    "whitening, 32 directions, alpha query expansion, 5": Rerank(expand=5, whiten=32),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="+", metavar="NAME=FILE", help="labelled vectors of gspool embed")
    parser.add_argument("--out", type=Path, default=Path("results/rerank.json"))
    options = parser.parse_args()
    rows = [
        row for name, _, file in (each.partition("=") for each in options.corpora) for row in compared(name, Path(file))
    ]
    names = " ".join(f'"{each.partition("=")[0]}"=FILE' for each in options.corpora)
    write_result(
        options.out,
        rows,
        command=f"python {Path(sys.argv[0]).parent.name}/rerank.py {names}",
        seeds=[*SEEDS],
        libraries=["lancedb", "numpy"],
    )


def compared(name: str, file: Path) -> list[dict[str, Any]]:
    """Return one row a variant."""
    figures = np.array([figures_of(open_index(file), seed) for seed in SEEDS])
    gains = 100 * (figures[:, :, 1] - figures[:, :1, 1])
    return [
        {
            "corpus": name,
            "re-ranking": variant,
            "p@1": 100 * figures[:, number, 0].mean(),
            "map@r": 100 * figures[:, number, 1].mean(),
            "gain": gains[:, number].mean(),
            "least": gains[:, number].min(),
            "most": gains[:, number].max(),
        }
        for number, variant in enumerate(VARIANTS)
    ]


def figures_of(index: Index, seed: int) -> list[tuple[float, float]]:
    """Return P@1 and MAP@R of every variant on one random half of each class."""
    table = index.read(["path", "label", "vector"])
    vectors, labels = vectors_of(table), np.array(table["label"].to_pylist())
    order = np.random.default_rng(seed).permutation(len(labels))
    # The place of a picture within its class, in random order, decides on which side it is.
    place = np.empty(len(labels), int)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        place[members] = np.arange(len(members))
    asked, kept = np.flatnonzero(place % 2), np.flatnonzero(place % 2 == 0)
    relevant = {label: int((labels[kept] == label).sum()) for label in np.unique(labels)}
    with TemporaryDirectory() as folder:
        LanceWriter(Path(folder) / "half.lance", index.settings).append(
            [ImageRecord(table["path"][int(row)].as_py(), str(labels[row])) for row in kept], vectors[kept]
        )
        half, most = open_index(Path(folder) / "half.lance"), max(relevant.values())
        found = [half.search(vectors[asked], most, rerank=rerank) for rerank in VARIANTS.values()]
    return [scores(answers, labels[asked], relevant) for answers in found]


def scores(answers: list[list[Hit]], labels: np.ndarray, relevant: dict[str, int]) -> tuple[float, float]:
    """Return P@1 and MAP@R."""
    first, average = [], []
    for hits, label in zip(answers, labels, strict=True):
        right = np.array([hit.label == label for hit in hits[: relevant[label]]], float)
        first.append(right[0])
        average.append((right * right.cumsum() / np.arange(1, len(right) + 1)).sum() / relevant[label])
    return float(np.mean(first)), float(np.mean(average))


if __name__ == "__main__":
    main()
