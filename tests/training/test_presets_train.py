"""Every preset of the paper, on a small tree in the official layout: it builds, takes a step and is measured."""

from __future__ import annotations

import pickle
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


def save_noise(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="JPEG")


def pictures(first_test_class: int):
    """Give (class, number, running number) of every picture; classes of the official split begin where they do."""
    labels = [*range(1, TRAIN + 1), *range(first_test_class, first_test_class + TEST)]
    for place, label in enumerate(labels):
        for number in range(IMAGES):
            yield label, number, place * IMAGES + number + 1


def cub(root: Path) -> None:
    images, labels = [], []
    for label, number, running in pictures(101):
        name = f"{label:03d}.Bird/{number}.jpg"
        save_noise(root / "CUB_200_2011" / "images" / name, running)
        images.append(f"{running} {name}\n")
        labels.append(f"{running} {label}\n")
    (root / "CUB_200_2011" / "images.txt").write_text("".join(images))
    (root / "CUB_200_2011" / "image_class_labels.txt").write_text("".join(labels))


def cars196(root: Path) -> None:
    rows = []
    for label, number, running in pictures(99):
        name = f"car_ims/{label:03d}{number}.jpg"
        save_noise(root / name, running)
        rows.append((name, label))
    kinds = [("relative_im_path", "O"), ("class", "O")]
    names = np.array([f"Car {number}" for number in range(1, 197)], dtype=object)
    savemat(root / "cars_annos.mat", {"annotations": np.array(rows, dtype=kinds), "class_names": names})


def sop(root: Path) -> None:
    lines = {"train": ["image_id class_id super_class_id path"], "test": ["image_id class_id super_class_id path"]}
    for label, number, running in pictures(11_319):
        name = f"chair_final/{label}_{number}.JPG"
        save_noise(root / "Stanford_Online_Products" / name, running)
        lines["train" if label <= TRAIN else "test"].append(f"{running} {label} 1 {name}")
    for split, rows in lines.items():
        (root / "Stanford_Online_Products" / f"Ebay_{split}.txt").write_text("\n".join(rows) + "\n")


def inshop(root: Path) -> None:
    rows = []
    for label, number, running in pictures(TRAIN + 1):
        name = f"img/WOMEN/Tees/id_{label:08d}/0{number}_1_front.jpg"
        save_noise(root / name, running)
        status = "train" if label <= TRAIN else ("query" if number == 0 else "gallery")
        rows.append(f"{name} id_{label:08d} {status}")
    table = "\n".join([str(len(rows)), "image_name item_id evaluation_status", *rows])
    (root / "list_eval_partition.txt").write_text(table + "\n")


def imagenet(root: Path) -> None:
    for part in ("train", "val"):
        for label, number, running in pictures(TRAIN + 1):
            save_noise(root / part / f"n{label:08d}" / f"{number}.JPEG", running)


TREES = {"cub": cub, "cars196": cars196, "sop": sop, "inshop": inshop, "imagenet": imagenet}
BENCHMARKS = [name for name in PRESETS if name.startswith("paper/") and name != "paper/collage"]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_of_the_paper_takes_a_step_and_is_measured(name, tmp_path):
    config = preset(name)
    TREES[config.data.name](tmp_path)
    config.data.root, config.data.workers = str(tmp_path), 0
    config.data.options["allow_partial"] = True
    if config.data.name == "imagenet":
        config.data.options["held_out"] = 1
    config.data.classes_per_batch, config.data.images_per_class = 3, min(config.data.images_per_class, 2)
    # One of them is trained with BN-Inception, on small images; for the others a small network does.
    if name == "paper/cub":
        config.model.backbone_options["pixels"] = {"size": 64, "resize": 72}
    else:
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
    # One epoch of warm-up belongs to the losses with proxies; LIBC and classifiers alone let batch norm learn.
    assert any(key.startswith("backbone.") for key in moved) == ("pnca" not in name)
    assert any(key.endswith("running_mean") for key in moved) == ("libc" in name or "imagenet" in name)


def test_cifar_collage_takes_a_step_and_is_measured(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    coarse_names = [*SHARED, *(f"super {number}" for number in range(16))]
    names = {"fine_label_names": [f"fine {label:02d}" for label in range(100)], "coarse_label_names": coarse_names}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    for seed, part in enumerate(("train", "test")):
        fine = [label for label in range(100) for _ in range(2)]
        pixels = np.random.default_rng(seed).integers(0, 256, (200, 3072), dtype=np.uint8)
        record = {"data": pixels, "fine_labels": fine, "coarse_labels": [label % 20 for label in fine]}
        (folder / part).write_bytes(pickle.dumps(record, protocol=2))
    config = preset("paper/collage")
    config.from_scratch = True
    config.data.root, config.data.classes_per_batch, config.data.images_per_class = str(tmp_path), 4, 2
    config.trainer.max_steps = config.trainer.evaluate_every = 1
    config.trainer.accelerator, config.trainer.progress = "cpu", False
    result = fit(config, tmp_path / "run")
    assert (result.steps, result.best_step) == (1, 1)
    assert 0 <= result.metrics["map@r"] <= 1
