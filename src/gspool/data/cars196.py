"""Cars196: the first 98 classes for training, the other 98 for testing (Supp. "Datasets")."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gspool.data.benchmark import Benchmark, Count, Entry, read_matlab


def _entries(folder: Path, part: str) -> Iterator[Entry]:
    whole = folder / "cars_annos.mat"
    return _from_one_file(whole) if whole.exists() else _from_devkit(folder)


def _from_one_file(path: Path) -> Iterator[Entry]:
    """Read the file that lists all images."""
    content = read_matlab(path)
    for row in content["annotations"]:
        number = int(getattr(row, "class"))
        image = path.parent / str(row.relative_im_path)
        yield Entry(image, str(content["class_names"][number - 1]), number=number)


def _from_devkit(folder: Path) -> Iterator[Entry]:
    """Read the files of the classification task; its own split is ignored."""
    names = read_matlab(folder / "devkit" / "cars_meta.mat")["class_names"]
    file = "cars_test_annos_withlabels.mat"
    test_labels = next((place for place in (folder / file, folder / "devkit" / file) if place.exists()), None)
    if test_labels is None:
        raise FileNotFoundError(
            f"{folder / file} is missing: the devkit alone has no labels for the images in cars_test, "
            "and half of them belong to the training classes here; that file is published beside the devkit"
        )
    for pictures, table in (("cars_train", folder / "devkit" / "cars_train_annos.mat"), ("cars_test", test_labels)):
        for row in read_matlab(table)["annotations"]:
            number = int(getattr(row, "class"))
            yield Entry(folder / pictures / str(row.fname), str(names[number - 1]), number=number)


cars196 = Benchmark(
    name="cars196",
    folder="stanford_cars",
    marks=("cars_annos.mat", "devkit/cars_train_annos.mat"),
    layout="  either  cars_annos.mat and car_ims/*.jpg\n"
    "  or      devkit/cars_meta.mat, devkit/cars_train_annos.mat, cars_test_annos_withlabels.mat,\n"
    "          cars_train/*.jpg and cars_test/*.jpg",
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (the images were withdrawn there; copies exist)",
    counts={"train": Count(8_054, 98), "test": Count(8_131, 98)},
    read=_entries,
    train_classes=98,
)
