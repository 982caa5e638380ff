"""Readers of the official layouts, on small trees; `allow_partial` says that small is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspool import data
from gspool.data import cub
from gspool.data.benchmark import Count, Entry, present

BENCHMARKS = ("cub", "cars196", "sop", "inshop", "flowers")
TREES = {"cars196": "cars_tree"} | {name: f"{name}_tree" for name in BENCHMARKS if name != "cars196"}


def labelled_paths(part):
    return [(part.class_names[label], Path(part.describe(row)).name) for row, label in enumerate(part.labels.tolist())]


def flower(label, number):
    """The files of flowers are in another order than their classes."""
    first = {102: 1, 51: 3, 1: 5, 52: 7}
    return f"image_{first[label] + number:05d}.jpg"


@pytest.mark.parametrize(
    ("name", "tree", "class_name", "file", "train", "test"),
    [
        ("cub", "cub_tree", "{:03d}.Bird", "Bird_{}_{}.jpg".format, (1, 2, 100), (101, 200)),
        ("sop", "sop_tree", "product {}", "{}_{}.JPG".format, (1, 2, 3, 4), (5, 6)),
        ("cars196", "cars_tree", "Car {}", "{:06d}_{}.jpg".format, (1, 98), (99, 196)),
        # Its own split of images is ignored.
        ("cars196", "cars_devkit_tree", "Car {}", "{:05d}.jpg".format, (1, 98), (99, 196)),
        ("flowers", "flowers_tree", "{}", flower, (1, 51), (52, 102)),
        ("flowers", "flowers_folders", "{}", flower, (1, 51), (52, 102)),
    ],
)
def test_official_layouts_are_read_in_the_order_of_classes(request, name, tree, class_name, file, train, test):
    for split, classes in (("train", train), ("test", test)):
        part = data.create(name, request.getfixturevalue(tree), split, allow_partial=True)
        rows = [(label, number) for label in classes for number in (0, 1)]
        assert labelled_paths(part) == [(class_name.format(label), file(label, number)) for label, number in rows]
        # The grey of a picture is the number of its class, or one more in another folder.
        greys = [float(image.float().mean().round()) for image, _ in part]
        assert greys == pytest.approx([label for label, _ in rows], abs=3)
        if tree == "cars_devkit_tree":
            assert [part.describe(index).split("/")[-2] for index in (0, 1)] == ["cars_train", "cars_test"]


@pytest.mark.parametrize("outer", [True, False])
def test_inshop_has_queries_and_a_gallery(inshop_tree, outer):
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


def test_annotations_that_are_missing_or_damaged_are_named(cars_devkit_tree):
    folder = cars_devkit_tree / "stanford_cars"
    (folder / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(FileNotFoundError, match="no labels for the images in cars_test"):
        data.create("cars196", cars_devkit_tree, "train", allow_partial=True)
    (folder / "cars_annos.mat").write_bytes(b"<html>moved</html>" * 20)
    with pytest.raises(ValueError, match=r"cars_annos\.mat cannot be read as a MATLAB file"):
        data.create("cars196", cars_devkit_tree, allow_partial=True)


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
def test_a_partial_tree_is_told_with_its_counts(request, name, split, needed, found):
    root = request.getfixturevalue(TREES[name])
    with pytest.raises(ValueError, match=f"must have {needed}.*{found} are on disk.*allow_partial=True"):
        data.create(name, root, split)


def test_counts_are_those_of_the_files_on_disk(cub_tree, tmp_path, monkeypatch):
    monkeypatch.setitem(cub.cub.counts, "train", Count(6, 3))
    assert len(data.create("cub", cub_tree, "train")) == 6
    # More than published is as suspicious as less.
    monkeypatch.setitem(cub.cub.counts, "train", Count(5, 3))
    with pytest.raises(ValueError, match="must have 5 images"):
        data.create("cub", cub_tree, "train")
    missing = cub_tree / "CUB_200_2011" / "images" / "002.Bird" / "Bird_2_1.jpg"
    missing.unlink()
    monkeypatch.setitem(cub.cub.counts, "train", Count(6, 3))
    assert data.create("cub", cub_tree, "train", allow_partial=True).counts().tolist() == [2, 1, 2]
    with pytest.raises(ValueError, match=f"first missing file is {missing}"):
        data.create("cub", cub_tree, "train")
    with pytest.raises(ValueError, match="0 images of 0 classes are on disk"):
        present("toy/train", [Entry(tmp_path / "a.jpg", "a")], Count(1, 1), allow_partial=True)


def test_folds_cut_the_training_classes(sop_tree):
    options = {"allow_partial": True, "folds": 2}
    for fold in range(2):
        validation = data.create("sop", sop_tree, "validation", fold=fold, **options)
        train = data.create("sop", sop_tree, "train", fold=fold, **options)
        assert validation.class_names == (f"product {2 * fold + 1}", f"product {2 * fold + 2}")
        assert train.num_classes == 2
        assert train.labels.max() == 1
        assert len(data.create("sop", sop_tree, "test", fold=fold, **options)) == 4


@pytest.mark.parametrize("name", [*BENCHMARKS, "cifar10", "cifar100", "collage", "distilled"])
def test_absent_data_and_absent_folds_say_what_to_do(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="was not found in") as problem:
        data.create(name, tmp_path)
    told = str(problem.value)
    assert str(tmp_path) in told
    assert "Expected layout:" in told
    assert ("download=True" in told) == (name not in ("cars196", "inshop", "flowers"))
    assert "http" in told or "ftp" in told
    if name not in ("collage", "distilled"):
        with pytest.raises(ValueError, match=f"{name} has no validation part of its own: choose a fold"):
            data.create(name, tmp_path, "validation")


@pytest.mark.parametrize(
    ("name", "file", "line", "told"),
    [
        ("cub", "CUB_200_2011/images.txt", "12", "images.txt, line 11: expected image_id path"),
        ("cub", "CUB_200_2011/images.txt", "12 x/y.jpg", "no class for image 12"),
        ("sop", "Stanford_Online_Products/Ebay_train.txt", "9 9 a.jpg", "Ebay_train.txt, line 10: expected image_id"),
        ("inshop", "Eval/list_eval_partition.txt", "img/a.jpg id_1 probe", "line 13: expected image_name"),
    ],
)
def test_a_line_that_is_not_as_published_is_named(request, name, file, line, told):
    root = request.getfixturevalue(TREES[name])
    with (root / file).open("a") as table:
        table.write(line + "\n")
    with pytest.raises(ValueError, match=told):
        data.create(name, root, allow_partial=True)
