"""Small trees in the official layouts, with real pictures of a few pixels."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

COARSE = """
aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture
insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2
""".split()  # noqa: SIM905
CAR_NAMES = np.array([f"Car {number}" for number in range(1, 197)], dtype=object)
# Classes out of order: readers must not rely on the order of a file.
CARS, FLOWERS = (99, 1, 196, 98), (102, 102, 51, 51, 1, 1, 52, 52)


def save_picture(path, grey=0, size=(12, 10), format="JPEG"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (grey % 256,) * 3).save(path, format=format)


@pytest.fixture
def picture():
    return save_picture


@pytest.fixture
def class_folders(tmp_path):
    """Ten classes of three pictures, one of each format."""
    root = tmp_path / "pictures"
    for label in range(10):
        for number, (suffix, format) in enumerate((("jpg", "JPEG"), ("PNG", "PNG"), ("webp", "WEBP"))):
            save_picture(root / f"class {label}" / f"{number}.{suffix}", 20 * label, format=format)
    return root


@pytest.fixture
def write_cub(tmp_path):
    """Return a function that writes CUB with pictures given by class number, name and grey."""

    def write(birds, format):
        folder = tmp_path / "CUB_200_2011"
        for _, name, grey in birds:
            save_picture(folder / "images" / name, grey, format=format)
        for table, column in (("images.txt", 1), ("image_class_labels.txt", 0)):
            (folder / table).write_text("".join(f"{row} {bird[column]}\n" for row, bird in enumerate(birds, start=1)))
        return tmp_path

    return write


@pytest.fixture
def cub_tree(write_cub):
    """Classes 1, 2, 100 to train, 101 and 200 to test, two images each; the bytes are WebP under .jpg names."""
    classes = (1, 2, 100, 101, 200)
    birds = [(label, f"{label:03d}.Bird/Bird_{label}_{number}.jpg", label) for label in classes for number in range(2)]
    return write_cub(birds, "WEBP")


@pytest.fixture
def sop_tree(tmp_path):
    folder = tmp_path / "Stanford_Online_Products"
    for split, classes in (("train", (1, 2, 3, 4)), ("test", (5, 6))):
        lines = ["image_id class_id super_class_id path"]
        for label in classes:
            for number in range(2):
                name = f"chair_final/{label}_{number}.JPG"
                save_picture(folder / name, label)
                lines.append(f"{2 * label + number - 1} {label} 3 {name}")
        (folder / f"Ebay_{split}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def inshop_tree(tmp_path):
    items = {1: "train train", 2: "train train train", 7: "query gallery", 9: "query query gallery"}
    rows = []
    for item, statuses in items.items():
        for number, status in enumerate(statuses.split()):
            name = f"img/WOMEN/Dresses/id_{item:08d}/0{number}_1_front.jpg"
            save_picture(tmp_path / "Img" / name, item)
            rows.append(f"{name:<60} id_{item:08d}    {status}")
    (tmp_path / "Eval").mkdir()
    lines = [str(len(rows)), "image_name item_id evaluation_status", *rows]
    (tmp_path / "Eval" / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def save_annotations(path, rows, **more):
    """Write a MATLAB struct array, one struct a row."""
    structs = np.array([tuple(row.values()) for row in rows], dtype=[(name, "O") for name in rows[0]])
    savemat(path, {"annotations": structs, **more})


@pytest.fixture
def cars_tree(tmp_path):
    """The layout of one annotation file: classes 1, 98 to train, 99, 196 to test."""
    rows = []
    for label in CARS:
        for number in range(2):
            name = f"car_ims/{label:06d}_{number}.jpg"
            save_picture(tmp_path / name, label)
            rows.append({"relative_im_path": name, "bbox_x1": 1, "class": label, "test": number})
    save_annotations(tmp_path / "cars_annos.mat", rows, class_names=CAR_NAMES)
    return tmp_path


@pytest.fixture
def cars_devkit_tree(tmp_path):
    """The same cars in the layout of the classification task."""
    root = tmp_path / "stanford_cars"
    (root / "devkit").mkdir(parents=True)
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": CAR_NAMES})
    tables = {"cars_train": "devkit/cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
    for number, (folder, table) in enumerate(tables.items()):
        for label in CARS:
            save_picture(root / folder / f"{label:05d}.jpg", label + number)
        save_annotations(root / table, [{"bbox_x1": 1, "class": label, "fname": f"{label:05d}.jpg"} for label in CARS])
    return tmp_path


@pytest.fixture
def flowers_tree(tmp_path):
    """The official layout: classes 102, 51, 1, 52 in the order of the files, two pictures each."""
    for row, label in enumerate(FLOWERS, start=1):
        save_picture(tmp_path / "flowers-102" / "jpg" / f"image_{row:05d}.jpg", label)
    savemat(tmp_path / "flowers-102" / "imagelabels.mat", {"labels": np.array(FLOWERS)})
    return tmp_path


@pytest.fixture
def flowers_folders(tmp_path):
    """The same flowers in class folders, divided over the splits of classification."""
    for row, label in enumerate(FLOWERS, start=1):
        split = "train" if row % 2 else ("valid", "test")[row % 4 // 2]
        save_picture(tmp_path / "flowers" / split / str(label) / f"image_{row:05d}.jpg", label)
    return tmp_path / "flowers"


def save_record(path, **record):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(record, protocol=2))


def cifar_rows(values):
    """Rows of images of one grey each."""
    return np.array(values, dtype=np.uint8)[:, None].repeat(3072, 1)


@pytest.fixture
def cifar10_tree(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    save_record(folder / "batches.meta", label_names=[f"thing {label}" for label in range(10)])
    labels = [label for label in range(10) for _ in range(2)]
    for number, file in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        save_record(folder / file, data=cifar_rows([10 * label + number for label in labels]), labels=labels)
    return tmp_path


@pytest.fixture
def cifar100_tree(tmp_path):
    """All hundred classes, three images each in train and one in test; a pixel tells the class and the file."""
    folder = tmp_path / "cifar-100-python"
    # Fine names sort in another order than they are numbered in, as a reader must not confuse the two.
    fine_names = [f"{COARSE[label % 20]} sub {label // 20}" for label in range(100)]
    save_record(folder / "meta", fine_label_names=fine_names, coarse_label_names=COARSE)
    for number, (file, copies) in enumerate((("train", 3), ("test", 1))):
        fine = [label for label in range(100) for _ in range(copies)]
        rows, coarse = cifar_rows([2 * label + number for label in fine]), [label % 20 for label in fine]
        save_record(folder / file, data=rows, fine_labels=fine, coarse_labels=coarse)
    return tmp_path


@pytest.fixture
def jpeg_bytes():
    content = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(content, format="JPEG")
    return content.getvalue()


@pytest.fixture
def damaged(class_folders, jpeg_bytes):
    """One picture cut off, one that is a web page, and in class 3 all gone."""
    (class_folders / "class 1" / "0.jpg").write_bytes(jpeg_bytes[: len(jpeg_bytes) // 2])
    (class_folders / "class 2" / "1.PNG").write_bytes(b"<html>404</html>")
    for name in ("0.jpg", "1.PNG", "2.webp"):
        (class_folders / "class 3" / name).write_bytes(b"")
    return class_folders
