"""What the tests of training share: a tiny configuration, glyphs drawn once."""

from __future__ import annotations

import pytest
import torch

from gspool import data
from gspool.data.glyph_alphabet import glyph_masks
from gspool.data.image_set import SPLITS
from gspool.training import TrainConfig
from gspool.training.report_figures import choose_examples
from training.tiny_run import tiny


@pytest.fixture(scope="session")
def drawn_once():
    drawn: dict[tuple[str, int], torch.Tensor] = {}

    def masks(characters, side):
        key = ("".join(characters), side)
        if key not in drawn:
            drawn[key] = glyph_masks(characters, side)
        return drawn[key]

    return masks


@pytest.fixture(autouse=True)
def glyphs_are_drawn_once(drawn_once, monkeypatch):
    """Drawing letters takes longer than the runs here."""
    monkeypatch.setattr("gspool.data.glyphs.glyph_masks", drawn_once)


@pytest.fixture(autouse=True)
def reports_show_little(monkeypatch):
    """Two queries with three neighbours each: drawing takes longer than the runs here."""
    monkeypatch.setattr(choose_examples.__wrapped__, "__defaults__", ((), 2, 3))


@pytest.fixture
def ready_to_fork(glyphs_are_drawn_once) -> None:
    """Import everything and draw the glyphs once, so that forked runs begin at once."""
    import matplotlib.figure  # noqa: F401
    import torch.utils.tensorboard  # noqa: F401

    from gspool.training import fit, processes  # noqa: F401

    processes.import_fabric()
    for split in SPLITS:
        data.create("glyphs", split=split, images_per_class=2, size=16)


@pytest.fixture
def config() -> TrainConfig:
    return tiny()
