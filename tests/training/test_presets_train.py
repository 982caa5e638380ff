"""Every preset of the paper, on a small tree in the official layout: it builds, takes a step and is measured."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from gspool import Embedder
from gspool.data.collage import SHARED
from gspool.training import PRESETS, fit
from gspool.training.metric_learning import build_model
from gspool.training.presets import preset

# Four folds of two classes each, and two classes to test.
TRAIN, TEST, IMAGES = 8, 2, 3


def pictures(root: Path, name: str, first_test_class: int = TRAIN + 1) -> Iterator[tuple[int, str, int]]:
    """Draw pictures, and yield the class, the name and the running number of each."""
    labels = [*range(1, TRAIN + 1), *range(first_test_class, first_test_class + TEST)]
    for running, (label, number) in enumerate(product(labels, range(IMAGES)), start=1):
        path = root / name.format(label=label, number=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(running).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, format="JPEG")
        yield label, str(path.relative_to(root)), running


def cub(root: Path) -> None:
    folder = root / "CUB_200_2011"
    rows = list(pictures(folder / "images", "{label:03d}.Bird/{number}.jpg", 101))
    (folder / "images.txt").write_text("".join(f"{running} {name}\n" for _, name, running in rows))
    (folder / "image_class_labels.txt").write_text("".join(f"{running} {label}\n" for label, _, running in rows))


def cars196(root: Path) -> None:
    rows = [(name, label) for label, name, _ in pictures(root, "car_ims/{label:03d}{number}.jpg", 99)]
    annotations = np.array(rows, dtype=[("relative_im_path", "O"), ("class", "O")])
    names = np.array([f"Car {number}" for number in range(1, 197)], dtype=object)
    savemat(root / "cars_annos.mat", {"annotations": annotations, "class_names": names})


def sop(root: Path) -> None:
    folder = root / "Stanford_Online_Products"
    rows = list(pictures(folder, "chair_final/{label}_{number}.JPG", 11_319))
    for split, own in (("train", rows[: TRAIN * IMAGES]), ("test", rows[TRAIN * IMAGES :])):
        lines = [
            "image_id class_id super_class_id path",
            *(f"{running} {label} 1 {name}" for label, name, running in own),
        ]
        (folder / f"Ebay_{split}.txt").write_text("\n".join(lines) + "\n")


def inshop(root: Path) -> None:
    rows = ["image_name item_id evaluation_status"]
    for label, name, running in pictures(root, "img/WOMEN/Tees/id_{label:08d}/0{number}_1_front.jpg"):
        status = "train" if label <= TRAIN else ("query" if running % IMAGES == 1 else "gallery")
        rows.append(f"{name} id_{label:08d} {status}")
    (root / "list_eval_partition.txt").write_text("\n".join([str(len(rows) - 1), *rows]) + "\n")


def imagenet(root: Path) -> None:
    for part in ("train", "val"):
        list(pictures(root / part, "n{label:08d}/{number}.JPEG"))


def collage(root: Path) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir()
    coarse_names = [*SHARED, *(f"super {number}" for number in range(16))]
    names = {"fine_label_names": [f"fine {label:02d}" for label in range(100)], "coarse_label_names": coarse_names}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    for seed, part in enumerate(("train", "test")):
        fine = [label for label in range(100) for _ in range(2)]
        pixels = np.random.default_rng(seed).integers(0, 256, (200, 3072), dtype=np.uint8)
        record = {"data": pixels, "fine_labels": fine, "coarse_labels": [label % 20 for label in fine]}
        (folder / part).write_bytes(pickle.dumps(record, protocol=2))


TREES = {"cub": cub, "cars196": cars196, "sop": sop, "inshop": inshop, "imagenet": imagenet, "collage": collage}


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("paper/")])
def test_a_preset_of_the_paper_takes_a_step_and_is_measured(name, tmp_path):
    config = preset(name)
    TREES[config.data.name](tmp_path)
    config.data.root, config.data.workers = str(tmp_path), 0
    if config.data.name != "collage":
        config.data.options["allow_partial"] = True
    if config.data.name == "imagenet":
        config.data.options["held_out"] = 1
    config.data.classes_per_batch, config.data.images_per_class = 3, min(config.data.images_per_class, 2)
    # One of them is trained with BN-Inception, on small images, and one with ResNet20; for others a small network does.
    if name == "paper/cub":
        config.model.backbone_options["pixels"] = {"size": 64, "resize": 72}
    elif name != "paper/collage":
        config.model.backbone, config.model.backbone_options = "small_cnn", {"width": 2}
    config.trainer.max_steps = config.trainer.evaluate_every = 1
    config.trainer.accelerator, config.trainer.progress = "cpu", False
    config.from_scratch = True
    result = fit(config, tmp_path / "run")
    assert (result.steps, result.best_step) == (1, 1)
    assert 0 <= result.metrics["map@r"] <= 1
    before = build_model(config).state_dict()
    after = Embedder.from_pretrained(tmp_path / "run" / "model").state_dict()
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    assert any(key.startswith("head.") or "embed" in key for key in moved), moved
    # One epoch of warm-up belongs to the losses with proxies; batch norm is frozen in the benchmarks alone.
    assert any(key.startswith("backbone.") for key in moved) == ("pnca" not in name)
    learns = any(word in name for word in ("libc", "imagenet", "collage"))
    assert any(key.endswith("running_mean") for key in moved) == learns
