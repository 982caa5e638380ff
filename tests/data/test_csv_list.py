from __future__ import annotations

import os

import pytest

from gspool import data
from gspool.data.csv_list import Picture, read_csv


def write(folder, *lines, encoding="utf-8"):
    path = folder / "list.csv"
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


def two_each(classes):
    """Lines for two pictures of each of some class folders."""
    return [f"class {label}/{name},c{label}" for label in classes for name in ("0.jpg", "1.PNG")]


def test_a_list_with_splits_and_roles_is_taken_at_its_word(class_folders):
    splits = {"ant": "train train", "bee": "TRAIN train", "cat": "val validation", "dog": "val val"}
    splits |= {"elk": "query gallery", "fox": "gallery query"}
    lines = [
        f"class {number}/{file},{label},{split},me"
        for number, (label, both) in enumerate(splits.items())
        for file, split in zip(("0.jpg", "1.PNG"), both.split(), strict=True)
    ]
    table = write(class_folders, "path,label,split,photographer", *lines)
    train = data.create("folder", table, "train")
    assert train.class_names == ("ant", "bee")
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert train.roles is None
    assert train[0][0].shape == (3, 10, 12)
    assert data.create("folder", table, "validation").class_names == ("cat", "dog")
    test = data.create("folder", table, "test")
    assert test.roles == ("query", "gallery", "gallery", "query")
    assert test.with_role("query").labels.tolist() == [0, 1]
    assert test.name == "list"
    assert data.create("folder", table, "all").class_names == tuple(splits)


def test_a_role_column_works_and_no_role_is_gallery(class_folders):
    roles = ("Query", "", "gallery", "query")
    lines = [f"{line},test,{role}" for line, role in zip(two_each((0, 1)), roles, strict=True)]
    table = write(class_folders, "path,label,split,role", *lines)
    assert data.create("folder", table, "test").roles == ("query", "gallery", "gallery", "query")


def test_a_list_without_splits_shares_out_classes(class_folders):
    table = write(class_folders, "path,label", *two_each(range(10)))
    names = [data.create("folder", table, split).class_names for split in ("train", "validation", "test")]
    assert sorted(name for part in names for name in part) == sorted(f"c{label}" for label in range(10))


def test_the_mark_of_a_spreadsheet_and_absolute_paths_are_understood(class_folders, tmp_path):
    lines = [f"{class_folders}/{line},train" for line in two_each((0, 1))]
    table = write(tmp_path, "path,label,split", *lines, encoding="utf-8-sig")
    assert data.create("folder", table, "train")[0][0].shape == (3, 10, 12)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("path,label\na.jpg,ant\nb.jpg,\nc.jpg,  ", "line 3: no label"),
        ("path,label\n,ant", "line 2: no path"),
        ("path,kind\na.jpg,ant", "no column label; its first line names .'path', 'kind'"),
        ("\ufeffpath,kind\n", "no column label; its first line names .'path', 'kind'"),
        ("file,kind\na.jpg,ant", "no column path and label"),
        ("path,label", "lists no images"),
        ("", "no column path and label"),
        ("path,label,split\na.jpg,ant,training", "line 2: split 'training' is not one of train, val"),
        ("path,label,split\na.jpg,ant,train\nb.jpg,ant,", "line 3: some rows have a split and some have none"),
        ("path,label,role\na.jpg,ant,shop", "line 2: role 'shop' is neither query nor gallery"),
        ("path,label\na.jpg,ant\n./a.jpg,bee", r"named twice .*'ant'.*'bee'"),
        ("path,label\na.jpg,ant\nb.jpg,ant", "1 class with images"),
        ('path,label\na.jpg,ant\n"b.jpg,' + "x" * 140_000, r"line 3: not readable as CSV \(field larger"),
        ('path,label\na.jpg,ant\n"b.jpg,bee\n' + "c.jpg,cat\n" * 20_000, "line 3: .*quotation mark not closed"),
        (b"path,label\na.jpg,ant\ncaf\xe9.jpg,bee\n", "line 3: this is not UTF-8"),
        ("path,label\na.jpg,ant\n".encode("utf-16"), "line 1: this is not UTF-8"),
    ],
)
def test_bad_lists_are_refused_by_line(tmp_path, text, told):
    (tmp_path / "list.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=f"(?s)list.csv.*{told}"):
        data.create("folder", tmp_path / "list.csv")


def test_a_pipe_in_a_list_is_a_broken_image_and_not_waited_for(class_folders):
    os.mkfifo(class_folders / "pipe.jpg")
    table = write(class_folders, "path,label", *two_each((0, 1)), "pipe.jpg,c0")
    report = data.check_images(data.create("folder", table, "all"), "skip")
    assert [broken.position for broken in report.broken] == [4]
    assert "not a regular file" in report.broken[0].reason


def test_a_list_is_read_row_by_row_and_may_do_without_labels(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    table = write(tmp_path, " path ,note", "a.jpg,1", "", "~/b.jpg,2", "~c.jpg,3", ",4")
    pictures = read_csv(table, needs_labels=False)
    for path in ("a.jpg", "home/b.jpg", "~c.jpg"):
        assert next(pictures) == Picture(tmp_path / path)
    with pytest.raises(ValueError, match="line 6: no path"):
        next(pictures)
