from __future__ import annotations

import pickle

import pytest

from gspool import data
from gspool.data import DataProblemsError, find_problems


def test_all_problems_are_found_at_once_with_the_options_that_go_on(damaged, picture):
    picture(damaged / "lone" / "1.jpg")
    (damaged / "void").mkdir()
    (damaged / "class 4" / "gone.jpg").symlink_to("nowhere.jpg")
    (damaged / "class 5" / "notes.txt").write_text("not a picture")
    (damaged / "class 6" / "copy.webp").write_bytes((damaged / "class 7" / "2.webp").read_bytes())
    found = find_problems("folder", damaged, images_per_class=4, classes_per_batch=8)
    told = {problem.text: problem.stops for problem in found.problems}
    for words, stops in (
        ("1 classes with a single image (lone)", True),
        ("1 classes without an image (void)", True),
        ("train has 6 classes, a batch takes 8", True),
        ("5 images cannot be read:", True),
        ("1 links lead nowhere:", True),
        ("1 classes have no image that can be read (class 3)", True),
        ("1 files are left out (class 5/notes.txt)", False),
        ("classes have fewer than 4 images", False),
        ("1 pictures are in several classes:", False),
    ):
        (match,) = {text for text in told if words in text}
        assert told[match] is stops
    assert found.remedy() == "--data.options.small_classes drop --data.classes_per_batch 6 --data.check skip"
    again = find_problems("folder", damaged, options={"small_classes": "drop"}, check="skip")
    assert again.stops == ()
    assert sum(len(part) for part in again.sets.values()) == 30 - 5 + 1


def test_the_remedy_for_too_few_classes_is_found_too(tmp_path, picture):
    for name in "abcd":
        for number in range(4 if name != "d" else 1):
            picture(tmp_path / name / f"{number}.jpg", ord(name) + 20 * number)
    found = find_problems("folder", tmp_path)
    assert found.remedy() == "--data.options.small_classes drop --data.options.zero_shot false"
    assert {*found.sets} == {"train", "validation", "test"}
    only = find_problems("folder", tmp_path, options={"label": "middle"})
    assert [problem.text for problem in only.problems] == ["label is 'leaf' or 'top', got 'middle'"]
    assert only.remedy() is None


def test_equal_files_in_train_and_test_are_told(tmp_path, picture):
    for grey, name in enumerate(("train/a/1", "train/a/2", "train/b/1", "train/b/2", "test/a/3", "test/b/3")):
        picture(tmp_path / f"{name}.png", 40 * grey, format="PNG")
    (tmp_path / "test" / "a" / "4.png").write_bytes((tmp_path / "train" / "a" / "1.png").read_bytes())
    (tmp_path / "train" / "b" / "3.png").write_bytes((tmp_path / "train" / "b" / "1.png").read_bytes())
    (problem,) = find_problems("folder", tmp_path, ["train", "test"], options={"small_classes": "keep"}).problems
    assert not problem.stops
    for words in ("1 pictures are in several splits", "train/a/1.png", "test/a/4.png"):
        assert words in problem.text


def test_prepared_sets_are_checked_and_returned(class_folders, tmp_path):
    found = find_problems(
        "folder", class_folders, ["train"], prepare=lambda images: data.cached(images, tmp_path / "c")
    )
    assert found.problems == ()
    assert found.sets["train"].images.count() == 18


def test_the_problems_of_an_error_survive_another_process(class_folders):
    (class_folders / "void").mkdir()
    with pytest.raises(DataProblemsError) as raised:
        data.create("folder", class_folders)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.problems) == (str(raised.value), raised.value.problems)
