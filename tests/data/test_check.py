from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gspool import data
from gspool.data import check_images, find_problems


@pytest.fixture
def damaged(class_folders: Path, jpeg_bytes: bytes) -> Path:
    """One picture cut off, one that is a web page, and in class 3 all gone."""
    (class_folders / "class 1" / "0.jpg").write_bytes(jpeg_bytes[: len(jpeg_bytes) // 2])
    (class_folders / "class 2" / "1.PNG").write_bytes(b"<html>404</html>")
    for name in ("0.jpg", "1.PNG", "2.webp"):
        (class_folders / "class 3" / name).write_bytes(b"")
    return class_folders


def whole(root: Path) -> data.ImageSet:
    return data.create("folder", root, "train", fractions=(1.0, 0.0, 0.0))


def test_sound_images_pass(class_folders: Path) -> None:
    report = check_images(whole(class_folders))
    assert report.broken == ()
    assert report.checked == 30
    assert "all 30 images can be read" in str(report)


def test_stop_names_and_counts_the_broken(damaged: Path) -> None:
    with pytest.raises(ValueError, match="5 of 30 images cannot be read; repair or remove") as problem:
        check_images(whole(damaged), "stop")
    told = str(problem.value)
    for name, reason in (("class 1/0.jpg", "damaged"), ("class 2/1.PNG", "not one of"), ("class 3/2.webp", "is empty")):
        assert any(name in line and reason in line for line in told.splitlines())


@pytest.mark.parametrize("workers", [1, 3])
def test_skip_leaves_them_out_and_reports(damaged: Path, workers: int) -> None:
    images = whole(damaged)
    report = check_images(images, "skip", workers=workers)
    assert report.checked == 30
    assert [Path(images.describe(one.position)).name for one in report.broken] == [
        "0.jpg", "1.PNG", "0.jpg", "1.PNG", "2.webp",
    ]  # fmt: skip
    assert len(report.images) == 25
    # Class 3 has lost all its images and with them its label.
    assert report.images.num_classes == 9
    assert "class 3" not in report.images.class_names
    for index, (image, label) in enumerate(report.images):
        assert image.shape == (3, 10, 12)
        assert Path(report.images.describe(index)).parent.name == report.images.class_names[label]
    assert "5 of 30 images cannot be read" in str(report)


def test_a_long_list_is_cut_short(tmp_path: Path) -> None:
    table = tmp_path / "list.csv"
    lines = [f"{number}.jpg,c{number % 2},train" for number in range(25)]
    table.write_text("\n".join(["path,label,split", *lines]))
    with pytest.raises(ValueError, match="25 of 25 images") as problem:
        check_images(data.create("folder", table))
    assert "... and 15 more" in str(problem.value)
    with pytest.raises(ValueError, match="25 of 25 images cannot be read; repair or remove them:"):
        check_images(data.create("folder", table), "skip")


def test_checking_fills_the_cache(class_folders: Path, tmp_path: Path) -> None:
    kept = data.cached(whole(class_folders), tmp_path / "cache")
    check_images(kept)
    assert kept.images.count() == 30


def test_the_bar_can_be_shown(class_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_images(whole(class_folders), progress=True)
    assert "checking pictures/train" in capsys.readouterr().out


def test_an_interrupt_does_not_wait_for_the_rest() -> None:
    looked = []

    class Slow(data.ArrayImages):
        def __getitem__(self, index: int) -> torch.Tensor:
            looked.append(index)
            time.sleep(0.01)
            if index == 3:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    images = data.ImageSet(Slow(torch.zeros(500, 3, 2, 2, dtype=torch.uint8)), [0] * 500, ("a",), name="slow")
    with pytest.raises(KeyboardInterrupt):
        check_images(images, workers=1)
    assert len(looked) < 50


def test_bad_settings_are_refused(class_folders: Path) -> None:
    with pytest.raises(ValueError, match="policy is 'stop' or 'skip'"):
        check_images(whole(class_folders), "ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="workers must be at least 1"):
        check_images(whole(class_folders), workers=0)


def test_all_problems_are_found_at_once_with_the_options_that_go_on(
    damaged: Path, picture: Callable[..., None]
) -> None:
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


def test_the_remedy_for_too_few_classes_is_found_too(tmp_path: Path, picture: Callable[..., None]) -> None:
    for name in "abcd":
        for number in range(4 if name != "d" else 1):
            picture(tmp_path / name / f"{number}.jpg", ord(name) + 20 * number)
    found = find_problems("folder", tmp_path)
    assert found.remedy() == "--data.options.small_classes drop --data.options.zero_shot false"
    assert {*found.sets} == {"train", "validation", "test"}
    only = find_problems("folder", tmp_path, options={"label": "middle"})
    assert [problem.text for problem in only.problems] == ["label is 'leaf' or 'top', got 'middle'"]
    assert only.remedy() is None


def test_equal_files_in_train_and_test_are_told(tmp_path: Path, picture: Callable[..., None]) -> None:
    for grey, name in enumerate(("train/a/1", "train/a/2", "train/b/1", "train/b/2", "test/a/3", "test/b/3")):
        picture(tmp_path / f"{name}.png", 40 * grey, format="PNG")
    (tmp_path / "test" / "a" / "4.png").write_bytes((tmp_path / "train" / "a" / "1.png").read_bytes())
    (tmp_path / "train" / "b" / "3.png").write_bytes((tmp_path / "train" / "b" / "1.png").read_bytes())
    options = {"small_classes": "keep"}
    (problem,) = find_problems("folder", tmp_path, ["train", "test"], options=options).problems
    assert not problem.stops
    assert "1 pictures are in several splits" in problem.text
    assert "train/a/1.png" in problem.text
    assert "test/a/4.png" in problem.text


def test_prepared_sets_are_checked_and_returned(class_folders: Path, tmp_path: Path) -> None:
    found = find_problems(
        "folder", class_folders, ["train"], prepare=lambda images: data.cached(images, tmp_path / "cache")
    )
    assert found.problems == ()
    assert found.sets["train"].images.count() == 18
