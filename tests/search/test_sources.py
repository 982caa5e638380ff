"""A corpus is listed from folders, globs, lists and files, always in one order."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspool.search.corpus.sources import list_images

# The tree of these tests holds a file of notes.
NOTES_ARE_MEANT = pytest.mark.filterwarnings("ignore:.*left out by name .*notes.txt:UserWarning")


def names(*sources) -> list[tuple[str, str | None]]:
    return [(Path(image.path).name, image.label) for image in list_images(sources)]


@pytest.fixture
def tree(tmp_path):
    for name in ("b/2.JPG", "b/deep/1.png", "a/3.webp", "a/notes.txt", "top.jpeg", ".hidden/4.png", "a/.5.png"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path


@NOTES_ARE_MEANT
def test_a_folder_is_walked_in_order_and_labelled_by_its_first_folders(tree):
    assert names(tree) == [("3.webp", "a"), ("2.JPG", "b"), ("1.png", "b"), ("top.jpeg", None)]


def test_paths_are_absolute_wherever_the_call_is_made(tree, monkeypatch):
    monkeypatch.chdir(tree)
    relative = [image.path for image in list_images(["b", "top.jpeg", "a/*.webp"])]
    assert relative == [str(tree / name) for name in ("b/2.JPG", "b/deep/1.png", "top.jpeg", "a/3.webp")]


@NOTES_ARE_MEANT
def test_globs_are_sorted_and_leave_out_what_is_no_picture(tree):
    assert names(f"{tree}/**/*") == [("3.webp", None), ("2.JPG", None), ("1.png", None), ("top.jpeg", None)]
    assert names(f"{tree}/[ab]/*") == [("3.webp", None), ("2.JPG", None)]


def test_a_file_with_the_characters_of_a_glob_is_a_file(tmp_path):
    (tmp_path / "one[1].png").touch()
    assert names(tmp_path / "one[1].png") == [("one[1].png", None)]


def test_wrong_sources_are_named(tree):
    (tree / "empty").mkdir()
    (tree / "bad.csv").write_text("file,label\n1.png,a\n")
    (tree / "gap.csv").write_text("path,label\n1.png,a\n,b\n")
    (tree / "none.csv").write_text("path\n")
    for source, error, word in (
        (tree / "nowhere", FileNotFoundError, "nowhere"),
        (f"{tree}/*.gif", ValueError, "no pictures"),
        (tree / "empty", ValueError, "no pictures"),
        (tree / "bad.csv", ValueError, "no column path"),
        (tree / "gap.csv", ValueError, "line 3"),
        (tree / "none.csv", ValueError, "lists no images"),
    ):
        with pytest.raises(error, match=word):
            names(source)
    with pytest.raises(ValueError, match="no images were named"):
        names()


def test_files_left_out_by_their_names_are_counted_and_named(tree):
    for name in ("scan.tif", "old.tga", "bare"):
        (tree / "b" / name).touch()
    message = r"4 files are left out by name .a/notes\.txt, b/bare, b/old\.tga, \.\.\..; pictures end"
    with pytest.warns(UserWarning, match=message) as told:
        assert len(names(tree)) == 4
    assert len(told) == 1
    with pytest.warns(UserWarning, match=r"1 file is left out by name .notes\.txt.;"):
        assert names(str(tree / "a" / "*")) == [("3.webp", None)]


@NOTES_ARE_MEANT
def test_folders_left_out_are_counted_and_named(tree):
    (tree / "c").symlink_to(tree / "b")
    (tree / "d").symlink_to(tree / "nowhere")
    with pytest.warns(UserWarning, match=r"2 folders are left out \([cd], [cd]\): links to a folder listed already"):
        assert len(names(tree)) == 4
    (tree / "c").unlink()
    with pytest.warns(UserWarning, match=r"1 folder is left out \(d\)"):
        assert len(names(tree)) == 4
    assert len([*list_images([tree], warn=False)]) == 4


def test_what_embed_writes_into_the_folder_is_no_picture_left_out(tree, recwarn):
    for notes in tree.rglob("notes.txt"):
        notes.unlink()
    before = names(tree)
    (tree / "vectors.lance" / "data").mkdir(parents=True)
    for name in ("vectors.lance/data/0.lance", "vectors.lance/data/odd.png", "v.npz", "v.npz.bad.csv"):
        (tree / name).touch()
    assert names(tree) == before
    assert not recwarn.list
