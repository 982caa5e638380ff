"""Small trees in the official layouts, with real pictures of a few pixels."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

COARSE = """
aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture
insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2
""".split()  # noqa: SIM905


def save_picture(path: Path, grey: int = 0, size: tuple[int, int] = (12, 10), format: str = "JPEG") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (grey % 256,) * 3).save(path, format=format)


@pytest.fixture
def picture() -> Callable[..., None]:
    return save_picture


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """Ten classes of three pictures, one of each format."""
    root = tmp_path / "pictures"
    for label in range(10):
        for number, (suffix, format) in enumerate((("jpg", "JPEG"), ("PNG", "PNG"), ("webp", "WEBP"))):
            save_picture(root / f"class {label}" / f"{number}.{suffix}", 20 * label, format=format)
    return root


@pytest.fixture
def cub_tree(tmp_path: Path) -> Path:
    """Classes 1, 2, 100 to train, 101 and 200 to test, two images each; the bytes are WebP under .jpg names."""
    folder = tmp_path / "CUB_200_2011"
    images, labels = [], []
    for label in (1, 2, 100, 101, 200):
        for number in range(2):
            name = f"{label:03d}.Bird/Bird_{label}_{number}.jpg"
            save_picture(folder / "images" / name, label, format="WEBP")
            images.append(f"{len(images) + 1} {name}")
            labels.append(f"{len(labels) + 1} {label}")
    (folder / "images.txt").write_text("\n".join(images) + "\n")
    (folder / "image_class_labels.txt").write_text("\n".join(labels) + "\n")
    return tmp_path


@pytest.fixture
def sop_tree(tmp_path: Path) -> Path:
    folder = tmp_path / "Stanford_Online_Products"
    first = 1
    for split, classes in (("train", (1, 2, 3, 4)), ("test", (5, 6))):
        lines = ["image_id class_id super_class_id path"]
        for label in classes:
            for number in range(2):
                name = f"chair_final/{label}_{number}.JPG"
                save_picture(folder / name, label)
                lines.append(f"{first} {label} 3 {name}")
                first += 1
        (folder / f"Ebay_{split}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def inshop_tree(tmp_path: Path) -> Path:
    rows = []
    for item, statuses in (
        (1, ("train", "train")),
        (2, ("train", "train", "train")),
        (7, ("query", "gallery")),
        (9, ("query", "query", "gallery")),
    ):
        for number, status in enumerate(statuses):
            name = f"img/WOMEN/Dresses/id_{item:08d}/0{number}_1_front.jpg"
            save_picture(tmp_path / "Img" / name, item)
            rows.append(f"{name:<60} id_{item:08d}    {status}")
    table = tmp_path / "Eval" / "list_eval_partition.txt"
    table.parent.mkdir()
    table.write_text("\n".join([str(len(rows)), "image_name item_id evaluation_status", *rows]) + "\n")
    return tmp_path


def matlab_rows(rows: list[dict[str, object]]) -> np.ndarray:
    """A MATLAB struct array."""
    kinds = [(name, "O") for name in rows[0]]
    return np.array([tuple(row.values()) for row in rows], dtype=kinds)


@pytest.fixture
def cars_names() -> list[str]:
    return [f"Car {number}" for number in range(1, 197)]


@pytest.fixture
def cars_tree(tmp_path: Path, cars_names: list[str]) -> Path:
    """The layout of one annotation file: classes 1, 98 to train, 99, 196 to test."""
    from scipy.io import savemat

    rows: list[dict[str, object]] = []
    # Classes out of order: the reader must not rely on the order of the file.
    for label in (99, 1, 196, 98):
        for number in range(2):
            name = f"car_ims/{label:06d}_{number}.jpg"
            save_picture(tmp_path / name, label)
            rows.append({"relative_im_path": name, "bbox_x1": 1, "class": label, "test": number})
    savemat(
        tmp_path / "cars_annos.mat",
        {"annotations": matlab_rows(rows), "class_names": np.array(cars_names, dtype=object)},
    )
    return tmp_path


@pytest.fixture
def cars_devkit_tree(tmp_path: Path, cars_names: list[str]) -> Path:
    """The same cars in the layout of the classification task."""
    from scipy.io import savemat

    root = tmp_path / "stanford_cars"
    (root / "devkit").mkdir(parents=True)
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": np.array(cars_names, dtype=object)})
    for number, (folder, table) in enumerate(
        (("cars_train", "devkit/cars_train_annos.mat"), ("cars_test", "cars_test_annos_withlabels.mat"))
    ):
        rows: list[dict[str, object]] = []
        for label in (99, 1, 196, 98):
            name = f"{label:05d}.jpg"
            save_picture(root / folder / name, label + number)
            rows.append({"bbox_x1": 1, "class": label, "fname": name})
        savemat(root / table, {"annotations": matlab_rows(rows)})
    return tmp_path


@pytest.fixture
def flowers_tree(tmp_path: Path) -> Path:
    """The official layout: classes 102, 51, 1, 52 in the order of the files, two pictures each."""
    from scipy.io import savemat

    labels = [label for label in (102, 51, 1, 52) for _ in range(2)]
    for row, label in enumerate(labels, start=1):
        save_picture(tmp_path / "flowers-102" / "jpg" / f"image_{row:05d}.jpg", label)
    savemat(tmp_path / "flowers-102" / "imagelabels.mat", {"labels": np.array(labels)})
    return tmp_path


@pytest.fixture
def flowers_folders(tmp_path: Path) -> Path:
    """The same flowers in class folders, divided over the splits of classification."""
    root = tmp_path / "flowers"
    for row, label in enumerate((label for label in (102, 51, 1, 52) for _ in range(2)), start=1):
        split = "train" if row % 2 else ("valid", "test")[row % 4 // 2]
        save_picture(root / split / str(label) / f"image_{row:05d}.jpg", label)
    return root


def cifar_rows(count: int, value: int) -> np.ndarray:
    return np.full((count, 3072), value, dtype=np.uint8)


@pytest.fixture
def cifar10_tree(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    names = [f"thing {label}" for label in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    for number, file in enumerate(
        ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
    ):
        record = {"data": np.concatenate([cifar_rows(2, 10 * label + number) for label in range(10)])}
        record["labels"] = [label for label in range(10) for _ in range(2)]  # type: ignore[assignment]
        (folder / file).write_bytes(pickle.dumps(record, protocol=2))
    return tmp_path


@pytest.fixture
def cifar100_tree(tmp_path: Path) -> Path:
    """All hundred classes, three images each in train and one in test; a pixel tells the class and the file."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    # Fine names sort in another order than they are numbered in, as a reader must not confuse the two.
    fine_names = [f"{COARSE[label % 20]} sub {label // 20}" for label in range(100)]
    meta = {"fine_label_names": fine_names, "coarse_label_names": COARSE}
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    for number, (file, copies) in enumerate((("train", 3), ("test", 1))):
        fine = [label for label in range(100) for _ in range(copies)]
        record = {
            "data": np.concatenate([cifar_rows(1, 2 * label + number) for label in fine]),
            "fine_labels": fine,
            "coarse_labels": [label % 20 for label in fine],
        }
        (folder / file).write_bytes(pickle.dumps(record, protocol=2))
    return tmp_path


@pytest.fixture
def jpeg_bytes() -> bytes:
    content = io.BytesIO()
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (64, 80, 3), dtype=np.uint8)).save(content, format="JPEG")
    return content.getvalue()


@pytest.fixture
def damaged(class_folders: Path, jpeg_bytes: bytes) -> Path:
    """One picture cut off, one that is a web page, and in class 3 all gone."""
    (class_folders / "class 1" / "0.jpg").write_bytes(jpeg_bytes[: len(jpeg_bytes) // 2])
    (class_folders / "class 2" / "1.PNG").write_bytes(b"<html>404</html>")
    for name in ("0.jpg", "1.PNG", "2.webp"):
        (class_folders / "class 3" / name).write_bytes(b"")
    return class_folders
