"""What the tests of training share: a tiny configuration, one thread, glyphs drawn once."""

from __future__ import annotations

import pytest
import torch

from gspool.data.glyph_alphabet import glyph_masks
from gspool.training import TrainConfig
from training.tiny_run import tiny


@pytest.fixture(autouse=True)
def runs_on_one_thread(one_thread):
    """Runs are compared bit for bit."""


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


@pytest.fixture
def config() -> TrainConfig:
    return tiny()
