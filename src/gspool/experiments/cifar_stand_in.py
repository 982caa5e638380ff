"""A tiny stand-in for CIFAR in its published layout: `--quick` runs experiments on it without a download."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from gspool.data.collage import SHARED

FOLDER_100, FOLDER_10 = "cifar-100-python", "cifar-10-batches-py"
SUPER_CLASSES, SUB_CLASSES = 20, 5


def write_cifar100_stand_in(root: Path, images: int = 10, test_images: int = 4, seed: int = 0) -> Path:
    """Write a CIFAR-100 of coloured noise: 20 super-classes of 5 classes, one colour a super-class.

    Returns the folder that `gspool.data` takes as the root. An existing stand-in is kept.
    """
    folder = root / FOLDER_100
    if (folder / "meta").exists():
        return root
    folder.mkdir(parents=True, exist_ok=True)
    coarse_names = sorted([*SHARED, *(f"thing_{number:02d}" for number in range(SUPER_CLASSES - len(SHARED)))])
    fine_names = [f"{coarse}_{sub}" for coarse in coarse_names for sub in range(SUB_CLASSES)]
    draws = np.random.default_rng(seed)
    colours = _colours(len(coarse_names), draws)
    for part, count in (("train", images), ("test", test_images)):
        fine = np.repeat(np.arange(len(fine_names)), count)
        coarse = fine // SUB_CLASSES
        content = {
            "data": _noise(colours[coarse], draws),
            "fine_labels": fine.tolist(),
            "coarse_labels": coarse.tolist(),
        }
        _write(folder / part, content)
    _write(folder / "meta", {"fine_label_names": fine_names, "coarse_label_names": coarse_names})
    return root


def write_cifar10_stand_in(root: Path, images: int = 4, test_images: int = 8, seed: int = 0) -> Path:
    """Write a CIFAR-10 of coloured noise: ``images`` of a class in each of its five batches."""
    folder = root / FOLDER_10
    if (folder / "batches.meta").exists():
        return root
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"thing {number}" for number in range(10)]
    draws = np.random.default_rng(seed)
    colours = _colours(len(names), draws)
    for part, count in (*((f"data_batch_{number}", images) for number in range(1, 6)), ("test_batch", test_images)):
        labels = np.repeat(np.arange(len(names)), count)
        _write(folder / part, {"data": _noise(colours[labels], draws), "labels": labels.tolist()})
    _write(folder / "batches.meta", {"label_names": names})
    return root


def _colours(number: int, draws: np.random.Generator) -> Any:
    return draws.integers(0, 256, (number, 3))


def _noise(colours: Any, draws: np.random.Generator) -> Any:
    """Return rows of 3,072 bytes, the red plane first, each around one colour."""
    shade = draws.integers(-40, 41, (len(colours), 3, 1024))
    return np.clip(colours[:, :, None] + shade, 0, 255).astype(np.uint8).reshape(len(colours), 3072)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))
