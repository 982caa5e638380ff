from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gspool import data


def test_classes_are_shared_out_whole(class_folders: Path) -> None:
    sets = {split: data.create("folder", class_folders, split) for split in ("train", "validation", "test")}
    assert {split: (part.num_classes, len(part)) for split, part in sets.items()} == {
        "train": (6, 18),
        "validation": (2, 6),
        "test": (2, 6),
    }
    names = [name for part in sets.values() for name in part.class_names]
    assert sorted(names) == sorted(path.name for path in class_folders.iterdir())
    assert sets["train"].name == "pictures"


def test_all_three_formats_are_read_and_labels_fit(class_folders: Path) -> None:
    part = data.create("folder", class_folders, "train")
    for index, (image, label) in enumerate(part):
        assert image.shape == (3, 10, 12)
        assert Path(part.describe(index)).parent.name == part.class_names[label]
    assert {Path(part.describe(index)).suffix for index in range(3)} == {".jpg", ".PNG", ".webp"}


def test_the_seed_decides_and_decides_alike(class_folders: Path) -> None:
    first = data.create("folder", class_folders, "test", seed=0).class_names
    assert data.create("folder", class_folders, "test", seed=0).class_names == first
    assert any(data.create("folder", class_folders, "test", seed=seed).class_names != first for seed in (1, 2, 3))


def test_images_can_be_shared_out_instead(class_folders: Path) -> None:
    shares = {"fractions": (2 / 3, 0.0, 1 / 3), "zero_shot": False}
    train = data.create("folder", class_folders, "train", **shares)
    test = data.create("folder", class_folders, "test", **shares)
    assert train.class_names == test.class_names
    assert train.counts().unique().tolist() == [2]
    assert test.counts().unique().tolist() == [1]
    assert not set(train.images.paths) & set(test.images.paths)


@pytest.mark.parametrize("zero_shot", [True, False])
def test_moving_the_pictures_does_not_move_them_to_another_split(
    class_folders: Path, tmp_path: Path, zero_shot: bool
) -> None:
    options = {"fractions": (1 / 3, 1 / 3, 1 / 3), "zero_shot": zero_shot}
    before = data.create("folder", class_folders, "test", **options).images.paths
    moved = class_folders.rename(tmp_path / "moved")
    after = data.create("folder", moved, "test", **options).images.paths
    assert [path.relative_to(class_folders) for path in before] == [path.relative_to(moved) for path in after]


def test_split_folders_are_taken_at_their_word(tmp_path: Path, picture: Callable) -> None:
    for split, classes in (("train", "abc"), ("val", "de"), ("test", "fg")):
        for name in classes:
            for number in range(2):
                picture(tmp_path / split / name / f"{number}.jpg")
    assert data.create("folder", tmp_path, "train").class_names == ("a", "b", "c")
    assert data.create("folder", tmp_path, "validation").class_names == ("d", "e")
    assert data.create("folder", tmp_path, "test").class_names == ("f", "g")


def test_pictures_in_deeper_folders_belong_to_the_class_on_top(tmp_path: Path, picture: Callable) -> None:
    for name in "abcd":
        picture(tmp_path / name / "2020" / "1.jpg")
        picture(tmp_path / name / "2021" / "1.jpg")
    part = data.create("folder", tmp_path, "test", fractions=(0.5, 0.0, 0.5))
    assert part.counts().tolist() == [2, 2]


def test_other_files_are_left_out_and_named(class_folders: Path, picture: Callable) -> None:
    (class_folders / "class 1" / "notes.txt").write_text("not a picture")
    (class_folders / "class 2" / ".DS_Store").write_text("hidden")
    with pytest.warns(UserWarning, match=r"1 files are no pictures .*class 1/notes.txt"):
        part = data.create("folder", class_folders, "train")
    assert len(part) == 18


def test_an_empty_class_stops_or_is_dropped(class_folders: Path) -> None:
    (class_folders / "void").mkdir()
    for policy in ("stop", "keep"):
        with pytest.raises(ValueError, match=r"1 classes without a picture \(void\)"):
            data.create("folder", class_folders, small_classes=policy)
    assert data.create("folder", class_folders, small_classes="drop").num_classes == 6


def test_a_class_of_one_image_stops_is_dropped_or_kept(class_folders: Path, picture: Callable) -> None:
    picture(class_folders / "lone" / "1.jpg")
    with pytest.raises(ValueError, match=r"1 classes with a single picture \(lone\).*small_classes='drop'"):
        data.create("folder", class_folders)
    names = {}
    for policy in ("drop", "keep"):
        parts = [
            data.create("folder", class_folders, split, small_classes=policy)
            for split in ("train", "validation", "test")
        ]
        names[policy] = {name for part in parts for name in part.class_names}
    assert names["keep"] - names["drop"] == {"lone"}
    assert len(names["drop"]) == 10
    with pytest.raises(ValueError, match="small_classes is 'stop'"):
        data.create("folder", class_folders, small_classes="ignore")


def test_one_class_is_refused(tmp_path: Path, picture: Callable) -> None:
    for number in range(3):
        picture(tmp_path / "only" / f"{number}.jpg")
    with pytest.raises(ValueError, match="has 1 class with pictures"):
        data.create("folder", tmp_path)


def test_too_few_classes_for_three_splits_are_refused_with_advice(tmp_path: Path, picture: Callable) -> None:
    for name in "abcd":
        for number in range(2):
            picture(tmp_path / name / f"{number}.jpg")
    with pytest.raises(ValueError, match=r"of its 4 classes, fractions .* give 1 to validation.*\(0.5, 0.0, 0.5\)"):
        data.create("folder", tmp_path, "validation")


def test_a_split_that_the_data_does_not_have_is_refused(tmp_path: Path, picture: Callable) -> None:
    for name in "ab":
        for number in range(2):
            picture(tmp_path / "train" / name / f"{number}.jpg")
    with pytest.raises(ValueError, match="its test split has 0 classes"):
        data.create("folder", tmp_path, "test")


def test_one_file_under_two_names_is_refused(class_folders: Path) -> None:
    (class_folders / "class 3" / "again.jpg").symlink_to(class_folders / "class 2" / "0.jpg")
    with pytest.raises(ValueError, match=r"one file twice: .*class 2.*class 3"):
        data.create("folder", class_folders)


def test_roots_without_classes_are_refused(tmp_path: Path, picture: Callable) -> None:
    picture(tmp_path / "1.jpg")
    with pytest.raises(ValueError, match=r"has no sub-folders.*found 1 files"):
        data.create("folder", tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        data.create("folder", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="folder needs a root"):
        data.create("folder")
