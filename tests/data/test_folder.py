from __future__ import annotations

import os
from pathlib import Path

import pytest

from gspool import data
from gspool.data.class_folders import ImageFolder

SPLITS = ("train", "validation", "test")


@pytest.fixture
def fill(tmp_path, picture):
    """Write two pictures for each class folder, given relative to the temporary folder."""

    def write(*folders):
        for folder in folders:
            for number in range(2):
                picture(tmp_path / folder / f"{number}.jpg")

    return write


def listed(root, split="all", **options):
    return data.create("folder", root, split, **options)


def test_classes_are_shared_out_whole(class_folders):
    parts = [listed(class_folders, split) for split in SPLITS]
    assert [(part.num_classes, len(part)) for part in parts] == [(6, 18), (2, 6), (2, 6)]
    assert sorted(name for part in parts for name in part.class_names) == sorted(os.listdir(class_folders))
    assert parts[0].name == "pictures"
    for index, (image, label) in enumerate(parts[0]):
        assert image.shape == (3, 10, 12)
        assert Path(parts[0].describe(index)).parent.name == parts[0].class_names[label]
    assert {Path(parts[0].describe(index)).suffix for index in range(3)} == {".jpg", ".PNG", ".webp"}


def test_a_folder_has_its_name_from_inside_too(class_folders, monkeypatch):
    monkeypatch.chdir(class_folders)
    assert listed(".").name == "pictures"
    monkeypatch.chdir("class 0")
    assert listed("..").name == "pictures"


def test_images_can_be_shared_out_instead(class_folders):
    shares = {"fractions": (2 / 3, 0.0, 1 / 3), "zero_shot": False}
    train, test = (listed(class_folders, split, **shares) for split in ("train", "test"))
    assert train.class_names == test.class_names
    assert train.counts().unique().tolist() == [2]
    assert test.counts().unique().tolist() == [1]
    assert not set(train.images.paths) & set(test.images.paths)


@pytest.mark.parametrize("zero_shot", [True, False])
def test_the_seed_decides_and_moving_the_pictures_does_not(class_folders, tmp_path, zero_shot):
    def chosen(root, seed):
        part = listed(root, "test", fractions=(1 / 3, 1 / 3, 1 / 3), zero_shot=zero_shot, seed=seed)
        return [path.relative_to(root) for path in part.images.paths]

    before = chosen(class_folders, 0)
    assert any(chosen(class_folders, seed) != before for seed in (1, 2, 3))
    assert chosen(class_folders.rename(tmp_path / "moved"), 0) == before


def test_split_folders_are_taken_at_their_word(tmp_path, fill):
    fill("train/a", "train/b", "train/c", "val/d", "val/e", "test/b", "test/g")
    for split, names in (("train", "abc"), ("validation", "de"), ("test", "bg"), ("all", "abcdeg")):
        assert listed(tmp_path, split).class_names == tuple(names)
    everything = listed(tmp_path)
    assert everything.counts().tolist() == [2, 4, 2, 2, 2, 2]
    assert everything.split == "all"


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
def test_nested_folders_are_labelled_by_leaf_or_top_and_the_choice_is_told(tmp_path, fill, folders, default, names):
    fill(*folders)
    other = "leaf" if default == "top" else "top"
    with pytest.warns(UserWarning, match=f"nested: .*{len(names)} classes.*--data.options.label {other}"):
        assert {*listed(tmp_path).class_names} == names
    assert {*listed(tmp_path, label=default).class_names} == names


def test_a_label_can_be_asked_for(tmp_path, fill):
    fill("fruit/apple", "fruit/other", "milk/oat", "milk/other")
    assert listed(tmp_path, label="leaf").class_names == ("apple", "fruit/other", "milk/other", "oat")
    assert listed(tmp_path, label="top").class_names == ("fruit", "milk")
    (tmp_path / "milk" / "void").mkdir()
    with pytest.raises(ValueError, match=r"1 classes without an image \(void\)"):
        listed(tmp_path, label="leaf")


def test_a_folder_beside_the_splits_is_left_out_and_named(tmp_path, fill):
    fill("Train/a", "Train/b", "valid/c", "valid/d", "test/e", "test/f", "extra/g")
    (tmp_path / "extra" / "void").mkdir()
    for split, names in (("train", "ab"), ("validation", "cd"), ("all", "abcdef")):
        with pytest.warns(UserWarning, match=r"2 images are left out \(extra/g/0.jpg, extra/g/1.jpg\)"):
            assert listed(tmp_path, split).class_names == tuple(names)


def test_other_files_are_left_out_and_named(class_folders):
    (class_folders / "class 1" / "notes.txt").write_text("not a picture")
    (class_folders / "class 2" / ".DS_Store").write_text("hidden")
    for label in (None, "top", "leaf"):
        with pytest.warns(UserWarning, match=r"1 files are left out \(class 1/notes.txt\)"):
            assert len(listed(class_folders, "train", label=label)) == 18


def test_small_classes_stop_are_dropped_or_kept(class_folders, picture):
    picture(class_folders / "lone" / "1.jpg")
    with pytest.raises(ValueError, match=r"(?s)1 classes with a single image \(lone\).*small_classes='drop'"):
        listed(class_folders)
    parts = [listed(class_folders, split, small_classes="keep") for split in SPLITS]
    assert {*os.listdir(class_folders)} == {name for part in parts for name in part.class_names}
    (class_folders / "void").mkdir()
    for policy in ("stop", "keep"):
        with pytest.raises(ValueError, match=r"1 classes without an image \(void\)"):
            listed(class_folders, small_classes=policy)
    with pytest.warns(UserWarning, match=r"2 classes of fewer than two images are left out \(lone, void\)"):
        assert listed(class_folders, small_classes="drop").num_classes == 10


@pytest.mark.parametrize(
    ("folders", "split", "told"),
    [
        (("only",), "train", "1 class with images"),
        (tuple("abcd"), "validation", r"of its 4 classes, fractions .* give 1 to validation.*\(0.5, 0.0, 0.5\)"),
        (("",), "train", "has no sub-folders.*found 2 files"),
        (("test/a", "test/b"), "train", r"its train split has 0 classes .*only test/.*--data.root .*/test"),
        (("test/a", "test/b", "train/c", "train/d"), "validation", r"has 0 classes .*--trainer.monitor_split none"),
    ],
)
def test_too_few_classes_are_refused_with_advice(tmp_path, fill, folders, split, told):
    fill(*folders)
    with pytest.raises(ValueError, match=f"(?s){told}"):
        listed(tmp_path, split)
    if "test/a" in folders:
        assert listed(tmp_path, "test").class_names == ("a", "b")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"label": "middle"}, "label is 'leaf' or 'top', got 'middle'"),
        ({"small_classes": "ignore"}, "small_classes is 'stop'"),
        ({"duplicates": "forget"}, "duplicates is 'keep' or 'drop'"),
    ],
)
def test_unknown_options_are_refused(class_folders, options, told):
    with pytest.raises(ValueError, match=told):
        listed(class_folders, **options)


def test_one_file_under_two_names_is_refused(class_folders):
    (class_folders / "class 3" / "again.jpg").symlink_to(class_folders / "class 2" / "0.jpg")
    with pytest.raises(ValueError, match=r"named twice .*class 2.*class 3"):
        listed(class_folders)


def test_equal_files_can_be_dropped(tmp_path, picture):
    """Of several classes all, of one class all but one, that of the test split first."""
    for grey, name in enumerate(("train/a/1", "train/a/2", "train/b/1", "train/b/2", "train/b/6", "test/a/1")):
        picture(tmp_path / f"{name}.jpg", 40 * grey)
    for copy, file in (("train/a/3", "train/b/1"), ("train/a/4", "test/a/1"), ("train/a/5", "train/a/2")):
        (tmp_path / f"{copy}.jpg").write_bytes((tmp_path / f"{file}.jpg").read_bytes())
    left_out = r"4 images .*left out \(train/a/3.jpg, train/a/4.jpg, train/a/5.jpg, train/b/1"
    with pytest.warns(UserWarning, match=left_out):
        assert listed(tmp_path, duplicates="drop").counts().tolist() == [3, 2]


def test_roots_that_are_missing_or_neither_folder_nor_file_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        listed(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "list.csv")
    with pytest.raises(ValueError, match=r"list\.csv is not a folder and not a regular file"):
        listed(tmp_path / "list.csv")


def test_classes_named_like_splits_are_classes_if_they_hold_the_images(tmp_path, fill):
    fill("train", "val")
    assert listed(tmp_path).class_names == ("train", "val")


# ---------------------------------------------------------------------------------------------------- links and names


def test_a_class_folder_may_be_a_link(class_folders, tmp_path, fill):
    fill("elsewhere")
    (class_folders / "linked").symlink_to(tmp_path / "elsewhere")
    assert listed(class_folders).counts()[-1] == 2


@pytest.mark.parametrize("target", ["..", "../..", ".", "../class 2"])
def test_folders_that_lead_back_are_not_listed_twice(class_folders, target):
    (class_folders / "class 1" / "link").symlink_to(target)
    with pytest.warns(UserWarning, match=r"1 folders are left out \(class 1/link\)"):
        assert len(listed(class_folders)) == 30


@pytest.mark.parametrize("target", [".", "..", "class 1"])
def test_a_class_that_is_a_link_to_another_folder_is_empty_and_named(class_folders, target):
    # By its name it comes last: what it leads to has been listed.
    (class_folders / "loop").symlink_to(target)
    with (
        pytest.warns(UserWarning, match="folders are left out .*loop"),
        pytest.raises(ValueError, match=r"1 classes without an image \(loop\)"),
    ):
        listed(class_folders)
    with pytest.warns(UserWarning, match="loop"):
        assert len(listed(class_folders, small_classes="drop")) == 30


def test_links_of_folders_that_lead_nowhere_are_named(class_folders, tmp_path):
    (class_folders / "class 1" / "gone").symlink_to("nowhere")
    (class_folders / "St. Elsewhere").symlink_to("nowhere")
    with pytest.warns(UserWarning, match=r"2 folders are left out \(St. Elsewhere, class 1/gone\): .*lead nowhere"):
        assert len(listed(class_folders)) == 30
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "ant").symlink_to("nowhere")
    with pytest.raises(ValueError, match=r"has no sub-folders.*ant lead nowhere"):
        listed(tmp_path / "links")


def test_links_of_files_that_lead_nowhere_are_broken_images(class_folders):
    (class_folders / "class 1" / "gone.jpg").symlink_to("nowhere.jpg")
    (class_folders / "class 2" / "round.jpg").symlink_to("round.jpg")
    os.mkfifo(class_folders / "class 3" / "pipe.jpg")
    report = data.check_images(listed(class_folders), "skip")
    assert [Path(broken.reason.split(":")[0]).name for broken in report.broken] == ["gone.jpg", "round.jpg", "pipe.jpg"]
    assert len(report.images) == 30


def test_hidden_folders_and_those_that_may_not_be_read_are_left_out(class_folders, picture, monkeypatch):
    picture(class_folders / "class 1" / ".thumbnails" / "0.jpg")
    picture(class_folders / "class 1" / "locked" / "0.jpg")
    scandir = os.scandir

    def guarded(folder):
        if Path(folder).name == "locked":
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.warns(UserWarning, match=r"1 folders are left out \(class 1/locked\)"):
        assert len(listed(class_folders)) == 30


def test_names_of_files_may_be_any_bytes_and_names_of_classes_may_not(class_folders, picture):
    name = os.fsdecode(b"caf\xe9")
    picture(class_folders / "class 1" / f"{name}.jpg")
    for zero_shot in (True, False):
        part = listed(class_folders, "train", fractions=(1.0, 0.0, 0.0), zero_shot=zero_shot)
        (described,) = (part.describe(row) for row in range(len(part)) if "caf" in part.describe(row))
        assert described.encode().endswith(b"caf\\xe9.jpg")
        assert len(list(data.cached(part))) == 31
    (class_folders / name).mkdir()
    with pytest.raises(ValueError, match=r"1 class folders whose names are not UTF-8 \(caf\\xe9\); rename"):
        listed(class_folders)


def test_a_walk_is_in_the_order_of_names_and_can_be_repeated(tmp_path, picture):
    for name in ("b/2.jpg", "b/1/9.jpg", "a/B.png", "a/a.png", "a.jpg", "index.lance/x.jpg"):
        picture(tmp_path / name)
    walk = ImageFolder(tmp_path, ignored=(".lance",))
    # As paths compare, part by part.
    expected = [("a/B.png", "a"), ("a/a.png", "a"), ("a.jpg", ""), ("b/1/9.jpg", "b"), ("b/2.jpg", "b")]
    for _ in range(2):
        assert [(str(picture.path.relative_to(tmp_path)), picture.label) for picture in walk] == expected
