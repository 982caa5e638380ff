from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

from gspool import data
from gspool.data.cifar import read_record
from gspool.data.collage import SHARED


def test_cifar10_joins_its_five_batches_and_folds_are_of_images(cifar10_tree):
    train = data.create("cifar10", cifar10_tree, "train", allow_partial=True)
    assert (len(train), train.num_classes) == (100, 10)
    assert train.class_names[3] == "thing 3"
    # A pixel says 10 * class + number of the batch.
    for index in range(100):
        image, label = train[index]
        assert image.shape == (3, 32, 32)
        assert image.unique().tolist() == [10 * label + index // 20]
    test = data.create("cifar10", cifar10_tree / "cifar-10-batches-py", "test", allow_partial=True)
    assert test[0][0].unique().tolist() == [5]
    train, validation = (
        data.create("cifar10", cifar10_tree, split, fold=1, folds=5, allow_partial=True)
        for split in ("train", "validation")
    )
    assert (len(train), len(validation)) == (80, 20)
    assert train.class_names == validation.class_names
    assert validation.counts().tolist() == [2] * 10


def test_cifar100_has_fine_and_coarse_labels(cifar100_tree):
    fine = data.create("cifar100", cifar100_tree, "train", allow_partial=True)
    coarse = data.create("cifar100", cifar100_tree, "train", classes="coarse", allow_partial=True)
    assert (fine.num_classes, coarse.num_classes) == (100, 20)
    for index in (0, 100, 299):
        assert fine.class_names[fine.labels[index]].startswith(coarse.class_names[coarse.labels[index]])
        assert fine[index][0].unique().tolist() == [2 * int(fine.labels[index])]
    with pytest.raises(ValueError, match=r"'fine' \(100\) or 'coarse'"):
        data.create("cifar100", cifar100_tree, classes="super")
    with pytest.raises(ValueError, match=r"must have 50,000 images of 100 classes.*has 300 images of 100 classes"):
        data.create("cifar100", cifar100_tree)


def test_a_row_is_three_planes_of_32_rows(cifar10_tree):
    row = np.arange(3072) % 251
    record = {"data": row.astype(np.uint8)[None].repeat(20, 0), "labels": list(range(10)) * 2}
    (cifar10_tree / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(record, protocol=2))
    image, _ = data.create("cifar10", cifar10_tree, "test", allow_partial=True)[0]
    for channel, y, x in ((0, 0, 1), (1, 5, 7), (2, 31, 31)):
        assert int(image[channel, y, x]) == (1024 * channel + 32 * y + x) % 251


class Command:
    """What a hostile pickle does: it runs a command when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_something_is_refused_and_does_not_run(tmp_path, cifar10_tree, protocol):
    trap = tmp_path / "was here"
    file = cifar10_tree / "cifar-10-batches-py" / "test_batch"
    file.write_bytes(pickle.dumps({"data": Command(trap)}, protocol=protocol))
    with pytest.raises(ValueError, match=r"it asks for posix\.mkdir, which no CIFAR file needs"):
        data.create("cifar10", cifar10_tree, "test", allow_partial=True)
    assert not trap.exists()
    # The trap itself works: an ordinary reader falls into it.
    pickle.loads(file.read_bytes())
    assert trap.exists()


def test_pickles_of_python_2_are_read(tmp_path):
    # Written out by hand as Python 2 did: text and bytes are the same opcode (U: short string).
    rows = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
    raw = rows.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01(K\x02M\x00\x0ctcnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + len(raw).to_bytes(4, "little")
        + raw
        + b"tb"
    )
    content = b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x03K\x04eU\x05names](U\x03cate" + b"u."
    (tmp_path / "old").write_bytes(content)
    record = read_record(tmp_path / "old")
    assert np.array_equal(record["data"], rows)
    assert record["labels"] == [3, 4]
    assert record["names"] == ["cat"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not a file of CIFAR"),
        (b"<html>", "not a file of CIFAR"),
        (pickle.dumps([1, 2]), "holds a list"),
        (pickle.dumps({"data": np.zeros((2, 3), np.uint8), "labels": [0, 1]}), r"uint8 of shape \[N, 3072\]"),
        (pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}), r"uint8 of shape \[N, 3072\]"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, protocol=2), "a list of 2 labels"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}, protocol=2), "a list of 2 labels"),
    ],
)
def test_damaged_files_are_named(cifar10_tree, content, told):
    (cifar10_tree / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=f"test_batch.*{told}"):
        data.create("cifar10", cifar10_tree, "test", allow_partial=True)


def test_missing_files_and_names_are_named(cifar10_tree):
    (cifar10_tree / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(FileNotFoundError, match="data_batch_3"):
        data.create("cifar10", cifar10_tree, "train", allow_partial=True)
    (cifar10_tree / "cifar-10-batches-py" / "batches.meta").write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match="no list of names 'label_names'"):
        data.create("cifar10", cifar10_tree, "test", allow_partial=True)


def tiles(image):
    return [image[:, y : y + 32, x : x + 32] for y in (0, 32) for x in (0, 32)]


@pytest.mark.parametrize(("split", "subs"), [("train", {0, 1}), ("validation", {2}), ("test", {3, 4})])
def test_a_collage_is_one_object_among_three_shared_images(cifar100_tree, split, subs):
    collages, alone = (data.create(name, cifar100_tree, split) for name in ("collage", "distilled"))
    coarse = data.create("cifar100", cifar100_tree, classes="coarse", allow_partial=True).class_names
    # Sub-classes of 16 super-classes, four images each: three of the train file, one of the test file.
    assert len(collages) == 16 * len(subs) * 4
    assert collages.num_classes == 16
    assert not set(collages.class_names) & set(SHARED)
    assert (alone.class_names, alone.labels.tolist()) == (collages.class_names, collages.labels.tolist())
    for index, (image, label) in enumerate(collages):
        assert image.shape == (3, 64, 64)
        for place, tile in enumerate(tiles(image)):
            # The grey of a tile is 2 * fine label, plus 1 in the test file of CIFAR-100.
            (grey,) = tile.unique().tolist()
            assert grey // 40 in subs
            name = coarse[grey // 2 % 20]
            if place == int(collages.foreground[index]):
                assert name == collages.class_names[label]
                assert torch.equal(alone[index][0], tile)
            else:
                assert name in SHARED


def test_collages_use_every_object_once_and_backgrounds_alike(cifar100_tree):
    collages = data.create("collage", cifar100_tree, "train")
    is_object = torch.nn.functional.one_hot(collages.foreground, 4) == 1
    assert len(collages.images.quarters[is_object].unique()) == len(collages)
    others = collages.images.quarters[~is_object].view(-1, 3)
    assert all(len(set(three)) == 3 for three in others.tolist())
    # 4 shared super-classes x 2 sub-classes x 4 images = 32 backgrounds for 384 places; a deal leaves 2 of 32 aside.
    counts = others.flatten().bincount()
    assert int((counts > 0).sum()) == 32
    assert int(counts[counts > 0].max()) <= 13


def test_the_seed_of_a_collage_draws_places_and_backgrounds(cifar100_tree):
    first, again, other = (data.create("collage", cifar100_tree, "test", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.images.quarters, again.images.quarters)
    assert not torch.equal(first.images.quarters, other.images.quarters)
    assert not torch.equal(first.foreground, other.foreground)
    assert set(first.foreground.tolist()) == {0, 1, 2, 3}
    assert torch.equal(first.labels, other.labels)


def test_another_cifar_is_refused(cifar100_tree):
    folder = cifar100_tree / "cifar-100-python"
    for file in ("train", "test"):
        record = pickle.loads((folder / file).read_bytes())
        keep = [row for row, label in enumerate(record["fine_labels"]) if label != 21]
        kept = {key: np.array(value)[keep] for key, value in record.items()}
        record = {key: value if key == "data" else value.tolist() for key, value in kept.items()}
        (folder / file).write_bytes(pickle.dumps(record, protocol=2))
    with pytest.raises(ValueError, match=r"super-class fish .* has 4 sub-classes, expected 5"):
        data.create("collage", cifar100_tree)
    record = pickle.loads((folder / "meta").read_bytes())
    record["coarse_label_names"][2] = "flora"
    (folder / "meta").write_bytes(pickle.dumps(record, protocol=2))
    with pytest.raises(ValueError, match="no super-class flowers"):
        data.create("collage", cifar100_tree)
