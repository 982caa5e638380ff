from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gspool import data
from gspool.data.class_folders import ImageFolder

Fill = Callable[..., None]


@pytest.fixture
def fill(tmp_path: Path, picture: Callable[..., None]) -> Fill:
    """Write two pictures for each class folder, given relative to the temporary folder."""

    def write(*folders: str, images: int = 2) -> None:
        for folder in folders:
            for number in range(images):
                picture(tmp_path / folder / f"{number}.jpg")

    return write


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


def test_split_folders_are_taken_at_their_word(tmp_path: Path, fill: Fill) -> None:
    fill("train/a", "train/b", "train/c", "val/d", "val/e", "test/f", "test/g")
    assert data.create("folder", tmp_path, "train").class_names == ("a", "b", "c")
    assert data.create("folder", tmp_path, "validation").class_names == ("d", "e")
    assert data.create("folder", tmp_path, "test").class_names == ("f", "g")
    assert data.create("folder", tmp_path, "all").class_names == tuple("abcdefg")


@pytest.mark.filterwarnings("ignore:.*images are left out .extra")
@pytest.mark.parametrize(
    ("folders", "default", "names"),
    [
        # Names that repeat are parts of a class; names that do not are classes.
        (("ant/2020", "ant/2021", "bee/2020", "bee/2021"), "top", {"ant", "bee"}),
        (("fruit/apple/red", "fruit/apple/green", "fruit/kiwi", "milk/oat"), "leaf", {"red", "green", "kiwi", "oat"}),
        (("train/fruit/kiwi", "train/fruit/fig", "test/fruit/kiwi", "test/fruit/fig"), "leaf", {"kiwi", "fig"}),
        (("train/fruit/kiwi", "train/fruit/fig", "test/nut/ash", "extra"), "leaf", {"kiwi", "fig", "ash"}),
        (("ant", "ant/raw", "bee"), "top", {"ant", "bee"}),
    ],
)
def test_nested_folders_are_labelled_by_leaf_or_top_and_the_choice_is_told(
    tmp_path: Path, fill: Fill, folders: tuple[str, ...], default: str, names: set[str]
) -> None:
    fill(*folders)
    other = "leaf" if default == "top" else "top"
    with pytest.warns(UserWarning, match=f"nested: .*{len(names)} classes.*--data.options.label {other}"):
        assert {*data.create("folder", tmp_path, "all").class_names} == names
    assert {*data.create("folder", tmp_path, "all", label=default).class_names} == names


def test_a_label_can_be_asked_for(tmp_path: Path, fill: Fill) -> None:
    fill("fruit/apple", "fruit/other", "milk/oat", "milk/other")
    leaves = data.create("folder", tmp_path, "all", label="leaf").class_names
    assert leaves == ("apple", "fruit/other", "milk/other", "oat")
    assert data.create("folder", tmp_path, "all", label="top").class_names == ("fruit", "milk")
    (tmp_path / "milk" / "void").mkdir()
    with pytest.raises(ValueError, match=r"1 classes without an image \(void\)"):
        data.create("folder", tmp_path, "all", label="leaf")
    with pytest.raises(ValueError, match="label is 'leaf' or 'top', got 'middle'"):
        data.create("folder", tmp_path, label="middle")


def test_a_folder_beside_the_splits_is_left_out_and_named(tmp_path: Path, fill: Fill) -> None:
    fill("Train/a", "Train/b", "valid/c", "valid/d", "test/e", "test/f", "extra/g")
    (tmp_path / "extra" / "void").mkdir()
    for split, names in (("train", ("a", "b")), ("validation", ("c", "d")), ("all", tuple("abcdef"))):
        with pytest.warns(UserWarning, match=r"2 images are left out \(extra/g/0.jpg, extra/g/1.jpg\)"):
            assert data.create("folder", tmp_path, split).class_names == names


def test_other_files_are_left_out_and_named(class_folders: Path, picture: Callable) -> None:
    (class_folders / "class 1" / "notes.txt").write_text("not a picture")
    (class_folders / "class 2" / ".DS_Store").write_text("hidden")
    for label in (None, "top", "leaf"):
        with pytest.warns(UserWarning, match=r"1 files are left out \(class 1/notes.txt\)"):
            part = data.create("folder", class_folders, "train", label=label)
        assert len(part) == 18


def test_an_empty_class_stops_or_is_dropped(class_folders: Path) -> None:
    (class_folders / "void").mkdir()
    for policy in ("stop", "keep"):
        with pytest.raises(ValueError, match=r"1 classes without an image \(void\)"):
            data.create("folder", class_folders, small_classes=policy)
    with pytest.warns(UserWarning, match=r"1 classes of fewer than two images are left out \(void\)"):
        assert data.create("folder", class_folders, small_classes="drop").num_classes == 6


@pytest.mark.filterwarnings("ignore:.*left out .lone")
def test_a_class_of_one_image_stops_is_dropped_or_kept(class_folders: Path, picture: Callable) -> None:
    picture(class_folders / "lone" / "1.jpg")
    with pytest.raises(ValueError, match=r"(?s)1 classes with a single image \(lone\).*small_classes='drop'"):
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


@pytest.mark.parametrize(
    ("folders", "split", "told"),
    [
        (("only",), "train", "1 class with images"),
        (tuple("abcd"), "validation", r"of its 4 classes, fractions .* give 1 to validation.*\(0.5, 0.0, 0.5\)"),
        (("",), "train", "has no sub-folders.*found 2 files"),
    ],
)
def test_too_few_classes_are_refused_with_advice(
    tmp_path: Path, fill: Fill, folders: tuple[str, ...], split: str, told: str
) -> None:
    fill(*folders)
    with pytest.raises(ValueError, match=told):
        data.create("folder", tmp_path, split)


def test_one_split_is_enough_and_another_is_refused(tmp_path: Path, fill: Fill) -> None:
    fill("test/a", "test/b")
    assert data.create("folder", tmp_path, "test").class_names == ("a", "b")
    assert len(data.create("folder", tmp_path, "all")) == 4
    with pytest.raises(
        ValueError, match=rf"(?s)its train split has 0 classes .*only test/.*--data.root {tmp_path}/test"
    ):
        data.create("folder", tmp_path, "train")
    fill("train/c", "train/d")
    with pytest.raises(ValueError, match=r"(?s)its validation split has 0 classes .*--trainer.monitor_split none"):
        data.create("folder", tmp_path, "validation")


def test_one_file_under_two_names_is_refused(class_folders: Path) -> None:
    (class_folders / "class 3" / "again.jpg").symlink_to(class_folders / "class 2" / "0.jpg")
    with pytest.raises(ValueError, match=r"named twice .*class 2.*class 3"):
        data.create("folder", class_folders)


def test_equal_files_can_be_dropped(tmp_path: Path, fill: Fill, picture: Callable) -> None:
    """Of several classes all, of one class all but one, that of the test split first."""
    for grey, name in enumerate(("train/a/1", "train/a/2", "train/b/1", "train/b/2", "train/b/6", "test/a/1")):
        picture(tmp_path / f"{name}.jpg", 40 * grey)
    for copy, file in (("train/a/3", "train/b/1"), ("train/a/4", "test/a/1"), ("train/a/5", "train/a/2")):
        (tmp_path / f"{copy}.jpg").write_bytes((tmp_path / f"{file}.jpg").read_bytes())
    with pytest.warns(
        UserWarning, match=r"4 images .*left out \(train/a/3.jpg, train/a/4.jpg, train/a/5.jpg, train/b/1"
    ):
        part = data.create("folder", tmp_path, "all", duplicates="drop")
    assert part.counts().tolist() == [3, 2]
    with pytest.raises(ValueError, match="duplicates is 'keep' or 'drop'"):
        data.create("folder", tmp_path, duplicates="forget")


def test_roots_that_are_missing_or_neither_folder_nor_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        data.create("folder", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="folder needs a root"):
        data.create("folder")
    os.mkfifo(tmp_path / "list.csv")
    with pytest.raises(ValueError, match=r"list\.csv is not a folder and not a regular file"):
        data.create("folder", tmp_path / "list.csv")


def test_all_is_every_image_whatever_its_split(class_folders: Path, tmp_path: Path, fill: Fill) -> None:
    assert len(data.create("folder", class_folders, "all")) == 30
    fill("splits/train/a", "splits/train/b", "splits/test/b", "splits/test/c")
    everything = data.create("folder", tmp_path / "splits", "all")
    assert everything.class_names == ("a", "b", "c")
    assert everything.counts().tolist() == [2, 4, 2]
    assert everything.split == "all"
    with pytest.raises(ValueError, match="glyphs has no split 'all'"):
        data.create("glyphs", split="all")


def test_classes_named_like_splits_are_classes_if_they_hold_the_images(tmp_path: Path, fill: Fill) -> None:
    fill("train", "val")
    assert data.create("folder", tmp_path, "all").class_names == ("train", "val")


# ---------------------------------------------------------------------------------------------------- links and names


def test_a_class_folder_may_be_a_link(class_folders: Path, tmp_path: Path, fill: Fill) -> None:
    fill("elsewhere")
    (class_folders / "linked").symlink_to(tmp_path / "elsewhere")
    assert data.create("folder", class_folders, "all").counts()[-1] == 2


@pytest.mark.parametrize("target", ["..", "../..", ".", "../class 2"])
def test_folders_that_lead_back_are_not_listed_twice(class_folders: Path, target: str) -> None:
    (class_folders / "class 1" / "link").symlink_to(target)
    with pytest.warns(UserWarning, match=r"1 folders are left out \(class 1/link\)"):
        assert len(data.create("folder", class_folders, "all")) == 30


@pytest.mark.parametrize("target", [".", "..", "class 1"])
def test_a_class_that_is_a_link_to_another_folder_is_empty_and_named(class_folders: Path, target: str) -> None:
    # By its name it comes last: what it leads to has been listed.
    (class_folders / "loop").symlink_to(target)
    with (
        pytest.warns(UserWarning, match="folders are left out .*loop"),
        pytest.raises(ValueError, match=r"1 classes without an image \(loop\)"),
    ):
        data.create("folder", class_folders, "all")
    with pytest.warns(UserWarning, match="loop"):
        assert len(data.create("folder", class_folders, "all", small_classes="drop")) == 30


def test_links_of_folders_that_lead_nowhere_are_named(class_folders: Path, tmp_path: Path) -> None:
    (class_folders / "class 1" / "gone").symlink_to("nowhere")
    (class_folders / "St. Elsewhere").symlink_to("nowhere")
    with pytest.warns(UserWarning, match=r"2 folders are left out \(St. Elsewhere, class 1/gone\): .*lead nowhere"):
        assert len(data.create("folder", class_folders, "all")) == 30
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "ant").symlink_to("nowhere")
    with pytest.raises(ValueError, match=r"has no sub-folders.*ant lead nowhere"):
        data.create("folder", tmp_path / "links")


def test_links_of_files_that_lead_nowhere_are_broken_images(class_folders: Path) -> None:
    (class_folders / "class 1" / "gone.jpg").symlink_to("nowhere.jpg")
    (class_folders / "class 2" / "round.jpg").symlink_to("round.jpg")
    os.mkfifo(class_folders / "class 3" / "pipe.jpg")
    report = data.check_images(data.create("folder", class_folders, "all"), "skip")
    assert [Path(broken.reason.split(":")[0]).name for broken in report.broken] == ["gone.jpg", "round.jpg", "pipe.jpg"]
    assert len(report.images) == 30


def test_hidden_folders_and_those_that_may_not_be_read_are_left_out(
    class_folders: Path, picture: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture(class_folders / "class 1" / ".thumbnails" / "0.jpg")
    picture(class_folders / "class 1" / "locked" / "0.jpg")
    scandir = os.scandir

    def guarded(folder: str) -> object:
        if Path(folder).name == "locked":
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.warns(UserWarning, match=r"1 folders are left out \(class 1/locked\)"):
        assert len(data.create("folder", class_folders, "all")) == 30


def test_names_of_files_may_be_any_bytes_and_names_of_classes_may_not(class_folders: Path, picture: Callable) -> None:
    name = os.fsdecode(b"caf\xe9")
    picture(class_folders / "class 1" / f"{name}.jpg")
    for zero_shot in (True, False):
        part = data.create("folder", class_folders, "train", fractions=(1.0, 0.0, 0.0), zero_shot=zero_shot)
        (described,) = (part.describe(row) for row in range(len(part)) if "caf" in part.describe(row))
        assert described.encode().endswith(b"caf\\xe9.jpg")
        assert len(list(data.cached(part))) == 31
    (class_folders / name).mkdir()
    with pytest.raises(ValueError, match=r"1 class folders whose names are not UTF-8 \(caf\\xe9\); rename"):
        data.create("folder", class_folders)


def test_a_walk_is_in_the_order_of_names_and_can_be_repeated(tmp_path: Path, picture: Callable) -> None:
    for name in ("b/2.jpg", "b/1/9.jpg", "a/B.png", "a/a.png", "a.jpg", "index.lance/x.jpg"):
        picture(tmp_path / name)
    walk = ImageFolder(tmp_path, ignored=(".lance",))
    # As paths compare, part by part.
    expected = [("a/B.png", "a"), ("a/a.png", "a"), ("a.jpg", ""), ("b/1/9.jpg", "b"), ("b/2.jpg", "b")]
    for _ in range(2):
        assert [(str(picture.path.relative_to(tmp_path)), picture.label) for picture in walk] == expected
