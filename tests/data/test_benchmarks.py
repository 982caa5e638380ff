"""Readers of the official layouts, on small trees; `allow_partial` says that small is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspool import data
from gspool.data import cars196, cub, flowers, inshop, sop
from gspool.data.benchmark import Benchmark, Count, Entry, present


def labelled_paths(part: data.ImageSet) -> list[tuple[str, str]]:
    return [
        (part.class_names[label], Path(part.describe(index)).name) for index, label in enumerate(part.labels.tolist())
    ]


@pytest.mark.parametrize(
    ("name", "tree", "train", "test"),
    [
        (
            "cub",
            "cub_tree",
            [(f"{label:03d}.Bird", f"Bird_{label}_{n}.jpg") for label in (1, 2, 100) for n in (0, 1)],
            [(f"{label:03d}.Bird", f"Bird_{label}_{n}.jpg") for label in (101, 200) for n in (0, 1)],
        ),
        (
            "sop",
            "sop_tree",
            [(f"product {label}", f"{label}_{n}.JPG") for label in (1, 2, 3, 4) for n in (0, 1)],
            [(f"product {label}", f"{label}_{n}.JPG") for label in (5, 6) for n in (0, 1)],
        ),
        (
            "cars196",
            "cars_tree",
            [(f"Car {label}", f"{label:06d}_{n}.jpg") for label in (1, 98) for n in (0, 1)],
            [(f"Car {label}", f"{label:06d}_{n}.jpg") for label in (99, 196) for n in (0, 1)],
        ),
        # Its own split of images is ignored.
        (
            "cars196",
            "cars_devkit_tree",
            [(f"Car {label}", f"{label:05d}.jpg") for label in (1, 98) for _ in (0, 1)],
            [(f"Car {label}", f"{label:05d}.jpg") for label in (99, 196) for _ in (0, 1)],
        ),
        *(
            (
                "flowers",
                tree,
                [(str(label), f"image_{row:05d}.jpg") for label, row in ((1, 5), (1, 6), (51, 3), (51, 4))],
                [(str(label), f"image_{row:05d}.jpg") for label, row in ((52, 7), (52, 8), (102, 1), (102, 2))],
            )
            for tree in ("flowers_tree", "flowers_folders")
        ),
    ],
)
def test_official_layouts_are_read_in_the_order_of_classes(
    request: pytest.FixtureRequest, name: str, tree: str, train: list[tuple[str, str]], test: list[tuple[str, str]]
) -> None:
    root = request.getfixturevalue(tree)
    parts = {split: data.create(name, root, split, allow_partial=True) for split in ("train", "test")}
    assert labelled_paths(parts["train"]) == train
    assert labelled_paths(parts["test"]) == test
    for part in parts.values():
        # The grey of a picture is the number of its class, or one more in another folder.
        for index, (class_name, _) in enumerate(labelled_paths(part)):
            number = int("".join(filter(str.isdigit, class_name)))
            assert int(part[index][0].float().mean().round()) == pytest.approx(number, abs=3)
    if tree == "cars_devkit_tree":
        assert [parts["train"].describe(index).split("/")[-2] for index in (0, 1)] == ["cars_train", "cars_test"]


@pytest.mark.parametrize("outer", [True, False])
def test_inshop_has_queries_and_a_gallery(inshop_tree: Path, outer: bool) -> None:
    if not outer:
        (inshop_tree / "Eval" / "list_eval_partition.txt").rename(inshop_tree / "list_eval_partition.txt")
        (inshop_tree / "Img" / "img").rename(inshop_tree / "img")
        (inshop_tree / "Img").rmdir()
    train = data.create("inshop", inshop_tree, "train", allow_partial=True)
    assert (len(train), train.num_classes, train.roles) == (5, 2, None)
    test = data.create("inshop", inshop_tree, "test", allow_partial=True)
    assert test.roles == ("query", "query", "query", "gallery", "gallery")
    assert [test.class_names[label] for label in test.with_role("gallery").labels] == ["id_00000007", "id_00000009"]
    assert test[0][0].shape == (3, 10, 12)


def test_cars_without_labels_for_half_of_its_images_says_so(cars_devkit_tree: Path) -> None:
    (cars_devkit_tree / "stanford_cars" / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(FileNotFoundError, match="no labels for the images in cars_test"):
        data.create("cars196", cars_devkit_tree, "train", allow_partial=True)


def test_a_file_that_is_no_matlab_file_is_named(cars_tree: Path) -> None:
    (cars_tree / "cars_annos.mat").write_bytes(b"<html>moved</html>" * 20)
    with pytest.raises(ValueError, match=r"cars_annos\.mat cannot be read as a MATLAB file"):
        data.create("cars196", cars_tree, allow_partial=True)


@pytest.mark.parametrize(
    ("name", "split", "needed", "found"),
    [
        ("cub", "train", "5,864 images of 100 classes", "6 images of 3 classes"),
        ("cub", "test", "5,924 images of 100 classes", "4 images of 2 classes"),
        ("sop", "train", "59,551 images of 11,318 classes", "8 images of 4 classes"),
        ("sop", "test", "60,502 images of 11,316 classes", "4 images of 2 classes"),
        ("inshop", "train", "25,882 images of 3,997 classes", "5 images of 2 classes"),
        ("inshop", "test", "14,218 images of 3,985 classes", "3 images of 2 classes"),
        ("cars196", "train", "8,054 images of 98 classes", "4 images of 2 classes"),
        ("cars196", "test", "8,131 images of 98 classes", "4 images of 2 classes"),
        ("flowers", "train", "3,493 images of 51 classes", "4 images of 2 classes"),
        ("flowers", "test", "4,696 images of 51 classes", "4 images of 2 classes"),
    ],
)
def test_a_partial_tree_is_told_with_its_counts(
    request: pytest.FixtureRequest, name: str, split: str, needed: str, found: str
) -> None:
    root = request.getfixturevalue({"cars196": "cars_tree"}.get(name, f"{name}_tree"))
    with pytest.raises(ValueError, match=f"must have {needed}.*{found} are on disk.*allow_partial=True"):
        data.create(name, root, split)


def test_missing_files_are_left_out_of_a_partial_tree_and_named_otherwise(cub_tree: Path) -> None:
    missing = cub_tree / "CUB_200_2011" / "images" / "002.Bird" / "Bird_2_1.jpg"
    missing.unlink()
    assert data.create("cub", cub_tree, "train", allow_partial=True).counts().tolist() == [2, 1, 2]
    with pytest.raises(ValueError, match=f"first missing file is {missing}"):
        data.create("cub", cub_tree, "train")


def test_a_complete_tree_passes_without_being_told(cub_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cub.cub.counts, "train", Count(6, 3))
    assert len(data.create("cub", cub_tree, "train")) == 6
    # More than published is as suspicious as less.
    monkeypatch.setitem(cub.cub.counts, "train", Count(5, 3))
    with pytest.raises(ValueError, match="must have 5 images"):
        data.create("cub", cub_tree, "train")


def test_nothing_on_disk_is_refused_even_as_a_part(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 images of 0 classes are on disk"):
        present("toy/train", [Entry(tmp_path / "a.jpg", "a")], Count(1, 1), allow_partial=True)


def test_folds_cut_the_training_classes(sop_tree: Path) -> None:
    options = {"allow_partial": True, "folds": 4}
    for fold in range(4):
        validation = data.create("sop", sop_tree, "validation", fold=fold, **options)
        train = data.create("sop", sop_tree, "train", fold=fold, **options)
        assert validation.class_names == (f"product {fold + 1}",)
        assert train.num_classes == 3
        assert train.labels.max() == 2
        assert len(data.create("sop", sop_tree, "test", fold=fold, **options)) == 4


@pytest.mark.parametrize("name", ["cub", "cars196", "sop", "inshop", "flowers", "cifar10", "cifar100"])
def test_validation_without_a_fold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has no validation part of its own: choose a fold"):
        data.create(name, tmp_path, "validation")


@pytest.mark.parametrize(
    "name", ["cub", "cars196", "sop", "inshop", "flowers", "cifar10", "cifar100", "collage", "distilled"]
)
def test_absent_data_says_what_to_put_where(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match="was not found in") as problem:
        data.create(name, tmp_path)
    told = str(problem.value)
    assert str(tmp_path) in told
    assert "Expected layout:" in told
    assert ("download=True" in told) == (name not in ("cars196", "inshop", "flowers"))
    assert "http" in told or "ftp" in told


@pytest.mark.parametrize(
    ("name", "file", "line", "told"),
    [
        ("cub", "CUB_200_2011/images.txt", "12", "images.txt, line 11: expected image_id path"),
        ("cub", "CUB_200_2011/images.txt", "12 x/y.jpg", "no class for image 12"),
        ("sop", "Stanford_Online_Products/Ebay_train.txt", "9 9 a.jpg", "Ebay_train.txt, line 10: expected image_id"),
        ("inshop", "Eval/list_eval_partition.txt", "img/a.jpg id_1 probe", "line 13: expected image_name"),
    ],
)
def test_a_line_that_is_not_as_published_is_named(
    request: pytest.FixtureRequest, name: str, file: str, line: str, told: str
) -> None:
    root = request.getfixturevalue(f"{name}_tree")
    with (root / file).open("a") as table:
        table.write(line + "\n")
    with pytest.raises(ValueError, match=told):
        data.create(name, root, allow_partial=True)


@pytest.mark.parametrize(
    ("benchmark", "images", "classes"),
    [
        (cub.cub, 11_788, 200),
        (cars196.cars196, 16_185, 196),
        (sop.sop, 120_053, 22_634),
        (flowers.flowers, 8_189, 102),
        # The classes of its queries are those of its gallery.
        (inshop.inshop, 52_712, 7_982 + 3_985),
    ],
)
def test_the_published_counts_add_up(benchmark: Benchmark, images: int, classes: int) -> None:
    assert tuple(map(sum, zip(*benchmark.counts.values(), strict=True))) == (images, classes)
