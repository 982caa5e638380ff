"""Sets that cannot be measured, or stacked into batches, are refused before training."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from gspool import Embedder
from gspool.data import FileImages, ImageSet, ShiftAndFlip
from gspool.training import evaluate_images
from gspool.training.gpu_data import TensorSet
from gspool.training.sets import check_sizes, check_splits
from training.tiny_run import draw_pictures, tiny


@pytest.mark.parametrize(
    ("labels", "queries", "message"),
    [
        ([0, 1, 1], None, None),
        ([0, 1, 2], None, "has no class of two images"),
        ([1, 1, 1], None, "has a single class to search"),
        ([0, 0, 1], 1, None),
        ([0, 1, 1], 1, "has no class of two images"),
        ([0, 1, 0, 0], 2, "has a single class to search"),
    ],
)
@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_search_needs_something_to_find_and_something_to_mistake(split, labels, queries, message):
    roles = None if queries is None else torch.arange(len(labels)) < queries
    sets = dict.fromkeys(("train", "validation", "test"), TensorSet.of(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1])))
    sets[split] = TensorSet.of(torch.zeros(len(labels), 1), torch.tensor(labels), queries=roles)
    config = tiny()
    with nullcontext() if message is None else pytest.raises(ValueError, match=f"{split} {message}.*add images"):
        check_splits(config, sets)
    config.trainer.monitor_split = "none"
    with nullcontext() if message is None or split == "validation" else pytest.raises(ValueError, match=message):
        check_splits(config, sets)
    config.loss.name = "cross_entropy"
    check_splits(config, sets)


def test_images_of_several_sizes_are_named_before_they_are_stacked(tmp_path):
    files = sorted(draw_pictures(tmp_path, 1, 2, side=20, ragged=True).glob("*/*.png"))
    images = ImageSet(FileImages(files), [0, 0], ["a"], name="toy")
    for transform in (None, ShiftAndFlip()):
        with pytest.raises(ValueError, match=r"test has 2 .*0\.png of 20 x 20, .*1\.png of 21 x 20.*'crop'"):
            check_sizes({"test": images.with_transform(transform)})
    check_sizes({"train": images.subset([0]), "test": images.subset([1])})
    check_sizes({"test": images.with_transform(lambda image: image[:, :8, :8])})
    with pytest.raises(ValueError, match=r"one size, got .*'crop'"):
        evaluate_images(Embedder("small_cnn", "gap", 8), images)
