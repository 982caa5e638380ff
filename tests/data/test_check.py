from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from gspool import data
from gspool.data import check_images


def whole(root):
    return data.create("folder", root, "train", fractions=(1.0, 0.0, 0.0))


def test_sound_images_pass_with_a_bar_and_fill_the_cache(class_folders, tmp_path, capsys):
    kept = data.cached(whole(class_folders), tmp_path / "cache")
    report = check_images(kept, progress=True)
    assert (report.broken, report.checked) == ((), 30)
    assert "all 30 images can be read" in str(report)
    assert kept.images.count() == 30
    assert "checking pictures/train" in capsys.readouterr().out


def test_stop_names_and_counts_the_broken(damaged):
    with pytest.raises(ValueError, match="5 of 30 images cannot be read") as problem:
        check_images(whole(damaged), "stop")
    told = str(problem.value)
    for name, reason in (("class 1/0.jpg", "damaged"), ("class 2/1.PNG", "not one of"), ("class 3/2.webp", "is empty")):
        assert any(name in line and reason in line for line in told.splitlines())
    assert "Repair or remove them" in told
    assert "--data.check skip" in told


@pytest.mark.parametrize("workers", [1, 3])
def test_skip_leaves_them_out_and_reports(damaged, workers):
    images = whole(damaged)
    report = check_images(images, "skip", workers=workers)
    assert report.checked == 30
    names = [Path(images.describe(one.position)).name for one in report.broken]
    assert names == ["0.jpg", "1.PNG", "0.jpg", "1.PNG", "2.webp"]
    assert len(report.images) == 25
    # Class 3 has lost all its images and with them its label.
    assert report.images.num_classes == 9
    assert "class 3" not in report.images.class_names
    for index, (image, label) in enumerate(report.images):
        assert image.shape == (3, 10, 12)
        assert Path(report.images.describe(index)).parent.name == report.images.class_names[label]
    assert "5 of 30 images cannot be read" in str(report)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_long_list_is_cut_short_and_nothing_is_left_to_go_on_with(tmp_path, policy):
    lines = [f"{number}.jpg,c{number % 2},train" for number in range(25)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split", *lines]))
    with pytest.raises(ValueError, match=r"(?s)25 of 25 images cannot.*\.\.\. and 15 more\nRepair or remove them$"):
        check_images(data.create("folder", tmp_path / "list.csv"), policy)


def test_an_interrupt_does_not_wait_for_the_rest():
    looked = []

    class Slow(data.ArrayImages):
        def __getitem__(self, index):
            looked.append(index)
            time.sleep(0.01)
            if index == 3:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    images = data.ImageSet(Slow(torch.zeros(500, 3, 2, 2, dtype=torch.uint8)), [0] * 500, ("a",), name="slow")
    with pytest.raises(KeyboardInterrupt):
        check_images(images, workers=1)
    assert len(looked) < 500


def test_bad_settings_are_refused(class_folders):
    with pytest.raises(ValueError, match="policy is 'stop' or 'skip'"):
        check_images(whole(class_folders), "ignore")
    with pytest.raises(ValueError, match="workers must be at least 1"):
        check_images(whole(class_folders), workers=0)
