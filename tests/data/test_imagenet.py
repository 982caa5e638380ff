"""ImageNet as users have it: class folders, a flat val/ with its lists, shards; the same images from each."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from gspool import data

CLASSES = ("n01440764", "n01443537", "n03394916")


def samples(part):
    """Return (name, class, bytes) of four training or two validation images of each class, class by class."""
    found = []
    rng = np.random.default_rng(part == "val")
    for label, name in enumerate(CLASSES):
        for number in range(4 if part == "train" else 2):
            buffer = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (10, 12, 3), dtype=np.uint8)).save(buffer, "JPEG")
            found.append((f"{name}_{number}", label, buffer.getvalue()))
    return found


def write_folders(root):
    for part in ("train", "val"):
        for name, label, content in samples(part):
            path = root / part / CLASSES[label] / f"{name}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return root


def write_shards(root, names="imagenet-{part}-{number:06d}.tar"):
    for part in ("train", "val"):
        listed = samples(part)
        for number, own in enumerate((listed[:5], listed[5:])):
            path = root / names.format(part=part, number=number)
            path.parent.mkdir(parents=True, exist_ok=True)
            with tarfile.open(path, "w") as shard:
                for name, label, content in own:
                    for ending, payload in (("cls", str(label).encode()), ("jpg", content), ("json", b"{}")):
                        member = tarfile.TarInfo(f"{name}.{ending}")
                        member.size = len(payload)
                        shard.addfile(member, io.BytesIO(payload))
    return root


def imagenet(root, split="train", **options):
    return data.create("imagenet", root, split, allow_partial=True, **options)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("names", ["imagenet-{part}-{number:06d}.tar", "{part}/{number}.tar"])
def test_folders_and_shards_hold_the_same_images(tmp_path, split, names):
    folders = imagenet(write_folders(tmp_path / "folders"), split, held_out=1)
    shards = imagenet(write_shards(tmp_path / "imagenet", names).parent, split, held_out=1)
    assert folders.labels.tolist() == shards.labels.tolist()
    assert all(torch.equal(one, other) for (one, _), (other, _) in zip(folders, shards, strict=True))
    assert folders.class_names == CLASSES
    assert folders.describe(0).startswith(str(tmp_path / "folders"))
    assert Path(shards.describe(0)).name == f"{Path(folders.describe(0)).stem}.jpg"
    assert Path(shards.describe(0)).parent.suffix == ".tar"


def test_archives_beside_the_class_folders_are_no_shards(tmp_path):
    root = write_folders(tmp_path)
    expected = [imagenet(root, split).labels.tolist() for split in ("train", "test")]
    # The official archives where torchvision wants them, and those that lay in the first of them.
    for name in ("ILSVRC2012_img_train", "ILSVRC2012_img_val", f"train/{CLASSES[0]}"):
        with tarfile.open(root / f"{name}.tar", "w") as archive:
            archive.addfile(tarfile.TarInfo("n01440764_1.JPEG"))
    assert [imagenet(root, split).labels.tolist() for split in ("train", "test")] == expected


def test_validation_is_the_last_images_of_every_class_and_train_the_others(tmp_path):
    root = write_folders(tmp_path)
    parts = [imagenet(root, split, held_out=2) for split in ("train", "validation")]
    assert [part.counts().tolist() for part in parts] == [[2, 2, 2], [2, 2, 2]]
    held = {parts[1].describe(row) for row in range(6)}
    assert held == {str(root / "train" / name / f"{name}_{number}.JPEG") for name in CLASSES for number in (2, 3)}
    assert len(imagenet(root)) == 12
    with pytest.raises(ValueError, match="held_out=10"):
        imagenet(root, "validation")
    with pytest.raises(ValueError, match="held_out=4 leaves nothing of class n01440764, which has 4"):
        imagenet(root, held_out=4)


def flat(tmp_path):
    """Move the validation images into one folder under names that do not tell the class."""
    root = write_folders(tmp_path / "flat")
    listed = []
    for number, (name, label, _) in enumerate(reversed(samples("val")), start=1):
        path = root / "val" / f"ILSVRC2012_val_{number:08d}.JPEG"
        (root / "val" / CLASSES[label] / f"{name}.JPEG").rename(path)
        listed.append((path.name, label))
    for name in CLASSES:
        (root / "val" / name).rmdir()
    return root, listed


@pytest.mark.parametrize("kind", ["numbers", "names", "kaggle", "ordered", "devkit"])
def test_a_flat_val_is_read_by_its_list(tmp_path, kind):
    root, listed = flat(tmp_path)
    options = {}
    if kind == "numbers":
        (root / "val.txt").write_text("\n".join(f"{name} {label}" for name, label in reversed(listed)))
    elif kind == "kaggle":
        rows = [f"{Path(name).stem},{CLASSES[label]} 1 2 3 4 " for name, label in listed]
        (root / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows]))
    elif kind == "devkit":
        folder = root / "ILSVRC2012_devkit_t12" / "data"
        folder.mkdir(parents=True)
        # The numbers of the development kit are in no order of the names.
        kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O")]
        synsets = np.array([(3 - label, CLASSES[label]) for label in range(3)], dtype=kinds)
        savemat(folder / "meta.mat", {"synsets": synsets})
        lines = [f"{3 - label}" for _, label in listed]
        (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(lines))
    else:
        options["labels"] = str(tmp_path / "list.txt")
        lines = [f"{name if kind == 'names' else ''} {CLASSES[label]}" for name, label in listed]
        (tmp_path / "list.txt").write_text("\n".join(lines))
    found = imagenet(root, "test", **options)
    assert [Path(found.describe(row)).name for row in range(6)] == [name for name, _ in listed]
    assert found.labels.tolist() == [label for _, label in listed]


def test_a_missing_picture_of_a_flat_val_does_not_shift_the_classes_of_others(tmp_path):
    root, listed = flat(tmp_path)
    (root / "val.txt").write_text("\n".join(CLASSES[label] for _, label in listed))
    (root / "val" / listed[1][0]).unlink()
    found = imagenet(root, "test")
    assert [(Path(found.describe(row)).name, label) for row, label in enumerate(found.labels.tolist())] == [
        listed[0],
        *listed[2:],
    ]
    # Without its number, nothing tells which line is that of a picture.
    (root / "val" / listed[2][0]).rename(root / "val" / "bird.JPEG")
    with pytest.raises(ValueError, match=r"no class of train/ for 1 images.*bird\.JPEG"):
        imagenet(root, "test")


def test_what_is_missing_or_damaged_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"imagenet was not found[\s\S]*train/n01440764"):
        imagenet(tmp_path)
    root, listed = flat(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no list of classes.*val\.txt.*labels=FILE"):
        imagenet(root, "test")
    (root / "val.txt").write_text("".join(f"{name} {label}\n" for name, label in listed[1:]))
    with pytest.raises(ValueError, match=f"no class of train/ for 1 images.*{listed[0][0]}"):
        imagenet(root, "test")
    with pytest.raises(ValueError, match=r"must have 1,281,167 images of 1,000 classes.*has 12 images of 3 classes"):
        data.create("imagenet", root)
    shards = write_shards(tmp_path / "shards")
    broken = shards / "imagenet-train-000001.tar"
    broken.write_bytes(b"not a tar" * 100)
    with pytest.raises(ValueError, match=r"000001\.tar cannot be read as a shard"):
        imagenet(shards)
    with tarfile.open(broken, "w") as shard:
        shard.addfile(tarfile.TarInfo("alone.jpg"))
    with pytest.raises(ValueError, match=r"1 images have no class, such as alone\.jpg"):
        imagenet(shards)
