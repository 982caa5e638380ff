from __future__ import annotations

from pathlib import Path

import pytest

from gspool import data


def write(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "list.csv"
    path.write_text(text, encoding=encoding)
    return path


def rows(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_a_list_with_splits_is_taken_at_its_word(class_folders: Path) -> None:
    table = write(
        class_folders,
        rows(
            "path,label,split,photographer",
            "class 0/0.jpg,ant,train,me",
            "class 0/1.PNG,ant,train,me",
            "class 1/0.jpg,bee,TRAIN,you",
            "class 1/1.PNG,bee,train,you",
            "class 2/0.jpg,cat,val,me",
            "class 2/1.PNG,cat,validation,me",
            "class 3/0.jpg,dog,val,me",
            "class 3/1.PNG,dog,val,me",
            "class 4/0.jpg,elk,query,me",
            "class 4/1.PNG,elk,gallery,me",
            "class 5/0.jpg,fox,gallery,me",
            "class 5/1.PNG,fox,query,me",
        ),
    )
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


def test_a_role_column_works_and_no_role_is_gallery(class_folders: Path) -> None:
    table = write(
        class_folders,
        rows(
            "path,label,split,role",
            "class 0/0.jpg,ant,test,Query",
            "class 0/1.PNG,ant,test,",
            "class 1/0.jpg,bee,test,gallery",
            "class 1/1.PNG,bee,test,query",
        ),
    )
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
        (("path,label", "a.jpg,ant", "b.jpg,", "c.jpg,  "), r"2 of its lines \(line 3, 4\) have no label"),
        (("path,label", ",ant"), r"1 of its lines \(line 2\) have no path"),
        (("path,kind", "a.jpg,ant"), "no column label; its first line names .'path', 'kind'"),
        (("file,kind", "a.jpg,ant"), "no column path and label"),
        (("path,label",), "lists no pictures"),
        (("",), "no column path and label"),
        (("path,label,split", "a.jpg,ant,training"), r"\(line 2\) have a split that is none of train, val"),
        (("path,label,split", "a.jpg,ant,train", "b.jpg,ant,"), r"\(line 3\) have no split, while others have one"),
        (("path,label,role", "a.jpg,ant,shop"), "a role that is neither query nor gallery"),
        (("path,label", "a.jpg,ant", "./a.jpg,bee"), r"one file twice: .*'ant'.*'bee'"),
        (("path,label", "a.jpg,ant", "b.jpg,ant"), "1 class with pictures"),
    ],
)
def test_bad_lists_are_refused_by_line(tmp_path: Path, text: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        data.create("folder", write(tmp_path, rows(*text)))


def test_many_bad_lines_are_counted_and_the_first_named(tmp_path: Path) -> None:
    table = write(tmp_path, rows("path,label", *(f"{number}.jpg," for number in range(40))))
    with pytest.raises(ValueError, match=r"40 of its lines \(line 2, 3, 4, 5, 6, \.\.\.\)"):
        data.create("folder", table)
