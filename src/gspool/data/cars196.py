"""Cars196: the first 98 models to train on, the other 98 to test on (Supp. "Datasets")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspool.data.benchmark import Benchmark, Count, Entry, assemble, locate, official_part, present
from gspool.data.image_set import ImageSet, Split

CARS196 = Benchmark(
    name="cars196",
    folder="stanford_cars",
    marks=("cars_annos.mat", "devkit/cars_train_annos.mat"),
    layout="  either  cars_annos.mat and car_ims/*.jpg\n"
    "  or      devkit/cars_meta.mat, devkit/cars_train_annos.mat, cars_test_annos_withlabels.mat,\n"
    "          cars_train/*.jpg and cars_test/*.jpg",
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (the images have been withdrawn there; copies exist)",
)
COUNTS = {"train": Count(8_054, 98), "test": Count(8_131, 98)}
TRAIN_CLASSES = 98


def cars196(
    root: Path,
    split: Split,
    *,
    fold: int | None = None,
    folds: int = 4,
    allow_partial: bool = False,
    download: bool = False,
) -> ImageSet:
    """Read Cars196 from ``cars_annos.mat``, or from the two annotation files of the devkit.

    Raises:
        FileNotFoundError: if the data set, or the labels of its test images, are not under ``root``.
        ValueError: if images are missing and ``allow_partial`` is not set.
    """
    part = official_part("cars196", split, fold)
    folder = locate(CARS196, root, download)
    whole = folder / "cars_annos.mat"
    rows = _from_one_file(whole) if whole.exists() else _from_devkit(folder)
    # Both ways list the same cars; ordered by class, the folds and the labels do not depend on the way.
    chosen = sorted((row for row in rows if (row[1] <= TRAIN_CLASSES) == (part == "train")), key=lambda row: row[1])
    entries = [Entry(folder / path, name) for path, _, name in chosen]
    here = present("cars196", entries, COUNTS[part], part, allow_partial)
    return assemble(CARS196, here, split, fold=fold, folds=folds)


def _from_one_file(path: Path) -> list[tuple[str, int, str]]:
    """Read (path, class from 1, name of the class) from the file that lists all images."""
    content = _matlab(path)
    names = [str(name) for name in content["class_names"]]
    return [
        (str(row.relative_im_path), int(getattr(row, "class")), names[int(getattr(row, "class")) - 1])
        for row in content["annotations"]
    ]


def _from_devkit(folder: Path) -> list[tuple[str, int, str]]:
    """Read the same from the files of the classification task; its split is not used."""
    names = [str(name) for name in _matlab(folder / "devkit" / "cars_meta.mat")["class_names"]]
    rows = []
    labelled_test = "cars_test_annos_withlabels.mat"
    places = [place for place in (folder / labelled_test, folder / "devkit" / labelled_test) if place.exists()]
    if not places:
        raise FileNotFoundError(
            f"{folder / labelled_test} is missing: the devkit alone has no labels for the images in cars_test, "
            "and half of them belong to the training classes here; that file is published beside the devkit"
        )
    for pictures, table in (("cars_train", folder / "devkit" / "cars_train_annos.mat"), ("cars_test", places[0])):
        for row in _matlab(table)["annotations"]:
            label = int(getattr(row, "class"))
            rows.append((f"{pictures}/{row.fname}", label, names[label - 1]))
    return rows


def _matlab(path: Path) -> dict[str, Any]:
    """Read a MATLAB file with its structs as records and one-element arrays unwrapped."""
    import numpy as np
    from scipy.io import loadmat

    try:
        content = loadmat(path, squeeze_me=True, struct_as_record=False)
    except (ValueError, TypeError, OSError) as problem:
        raise ValueError(f"{path} cannot be read as a MATLAB file ({problem})") from problem
    # squeeze_me turns a list of one into the one: a list is what the readers above expect.
    return {name: np.atleast_1d(value) for name, value in content.items() if not name.startswith("__")}
