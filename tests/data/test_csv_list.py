from __future__ import annotations

import os
from pathlib import Path

import pytest

from gspool import data
from gspool.data.csv_list import Picture, read_csv


def write(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "list.csv"
    path.write_text(text, encoding=encoding)
    return path


def rows(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_a_list_with_splits_and_roles_is_taken_at_its_word(class_folders: Path) -> None:
    splits = {"ant": "train train", "bee": "TRAIN train", "cat": "val validation", "dog": "val val"}
    splits |= {"elk": "query gallery", "fox": "gallery query"}
    lines = [
        f"class {number}/{file},{label},{split},me"
        for number, (label, both) in enumerate(splits.items())
        for file, split in zip(("0.jpg", "1.PNG"), both.split(), strict=True)
    ]
    table = write(class_folders, rows("path,label,split,photographer", *lines))
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


def test_a_role_column_works_and_no_role_is_gallery(class_folders: Path) -> None:
    lines = (
        "class 0/0.jpg,ant,test,Query",
        "class 0/1.PNG,ant,test,",
        "class 1/0.jpg,bee,test,gallery",
        "class 1/1.PNG,bee,test,query",
    )
    table = write(class_folders, rows("path,label,split,role", *lines))
    assert data.create("folder", table, "test").roles == ("query", "gallery", "gallery", "query")


def test_a_list_without_splits_shares_out_classes(class_folders: Path) -> None:
    lines = [f"class {label}/{name},c{label}" for label in range(10) for name in ("0.jpg", "1.PNG")]
    table = write(class_folders, rows("path,label", *lines))
    names = [data.create("folder", table, split).class_names for split in ("train", "validation", "test")]
    assert sorted(name for part in names for name in part) == sorted(f"c{label}" for label in range(10))


def test_the_mark_of_a_spreadsheet_and_absolute_paths_are_understood(class_folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    lines = [
        f'"{class_folders / f"class {label}" / name}",c{label},train' for label in (0, 1) for name in ("0.jpg", "1.PNG")
    ]
    table = write(folder, rows("path,label,split", *lines), encoding="utf-8-sig")
    assert data.create("folder", table, "train")[0][0].shape == (3, 10, 12)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (("path,label", "a.jpg,ant", "b.jpg,", "c.jpg,  "), "line 3: no label"),
        (("path,label", ",ant"), "line 2: no path"),
        (("path,kind", "a.jpg,ant"), "no column label; its first line names .'path', 'kind'"),
        (("file,kind", "a.jpg,ant"), "no column path and label"),
        (("path,label",), "lists no images"),
        (("",), "no column path and label"),
        (("path,label,split", "a.jpg,ant,training"), "line 2: split 'training' is not one of train, val"),
        (("path,label,split", "a.jpg,ant,train", "b.jpg,ant,"), "line 3: some rows have a split and some have none"),
        (("path,label,role", "a.jpg,ant,shop"), "line 2: role 'shop' is neither query nor gallery"),
        (("path,label", "a.jpg,ant", "./a.jpg,bee"), r"named twice .*'ant'.*'bee'"),
        (("path,label", "a.jpg,ant", "b.jpg,ant"), "1 class with images"),
    ],
)
def test_bad_lists_are_refused_by_line(tmp_path: Path, text: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        data.create("folder", write(tmp_path, rows(*text)))


def test_a_pipe_in_a_list_is_a_broken_image_and_not_waited_for(class_folders: Path) -> None:
    os.mkfifo(class_folders / "pipe.jpg")
    lines = [f"class {label}/{name},c{label}" for label in (0, 1) for name in ("0.jpg", "1.PNG")]
    table = write(class_folders, rows("path,label", *lines, "pipe.jpg,c0"))
    report = data.check_images(data.create("folder", table, "all"), "skip")
    assert [broken.position for broken in report.broken] == [4]
    assert "not a regular file" in report.broken[0].reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'path,label\na.jpg,ant\n"b.jpg,' + b"x" * 140_000, r"line 3: not readable as CSV \(field larger"),
        (b'path,label\na.jpg,ant\n"b.jpg,bee\n' + b"c.jpg,cat\n" * 20_000, "line 3: .*quotation mark not closed"),
        (b"path,label\na.jpg,ant\ncaf\xe9.jpg,bee\n", "line 3: this is not UTF-8"),
        ("path,label\na.jpg,ant\n".encode("utf-16"), "line 1: this is not UTF-8"),
        (b"\xef\xbb\xbfpath,kind\n", "no column label; its first line names .'path', 'kind'"),
    ],
)
def test_text_that_cannot_be_read_is_refused_by_line(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(ValueError, match=f"list.csv.*{reason}"):
        data.create("folder", tmp_path / "list.csv")


def test_a_list_is_read_row_by_row_and_may_do_without_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    table = write(tmp_path, rows(" path ,note", "a.jpg,1", "", "~/b.jpg,2", "~c.jpg,3", ",4"))
    pictures = read_csv(table, needs_labels=False)
    assert [next(pictures) for _ in range(3)] == [
        Picture(tmp_path / "a.jpg"),
        Picture(tmp_path / "home" / "b.jpg"),
        Picture(tmp_path / "~c.jpg"),
    ]
    with pytest.raises(ValueError, match="line 6: no path"):
        next(pictures)
