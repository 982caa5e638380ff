"""A folder of pictures, and a small model, for the tests of search."""

from __future__ import annotations

import pytest
import torch

from gspool import Embedder
from search.drawn_picture import draw_picture

CLASSES = ("ant", "bee", "cat")
EACH = 5


@pytest.fixture(scope="session")
def small_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Embedder(
            "small_cnn", pooling="gsp", dim=16, pooling_options={"prototypes": 8, "mu": 0.3, "epsilon": 5.0}
        ).eval()


@pytest.fixture(scope="session")
def model_folder(small_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    small_model.save_pretrained(folder)
    return folder


@pytest.fixture
def pictures(tmp_path):
    """Fifteen pictures of three classes in sub-folders."""
    root = tmp_path / "pictures"
    for number, name in enumerate(CLASSES):
        for picture in range(EACH):
            draw_picture(root / name / f"{picture}.png", 100 * number + picture)
    return root
