"""Prototypes that start from local features are local features, far apart from each other."""

from __future__ import annotations

import pytest
import torch

from experiments.resident.tiny_sets import tiny
from gspool.experiments.benchmark.stand_in import striped
from gspool.experiments.resident.prototype_start import start_from_tokens
from gspool.functional import clip_norm
from gspool.training.build import build_model


def test_prototypes_are_tokens_of_the_images_and_differ() -> None:
    settings, images = tiny(), striped(4, 3)
    model = build_model(settings).eval()
    start_from_tokens(model, images, settings.data, 16, 12, seed=0)
    prototypes = model.head.layer.prototypes.detach()
    with torch.no_grad():
        tokens = clip_norm(model.head.embed(model.feature_map(images.pixels)).flatten(2).transpose(1, 2).flatten(0, 1))
    apart = (prototypes[:, None] - tokens).norm(dim=2).min(1).values
    assert apart.max() < 1e-5
    between = (prototypes[:, None] - prototypes).norm(dim=2) + 9 * torch.eye(4)
    typical = (tokens[:, None] - tokens).norm(dim=2).median()
    assert between.min() > typical


def test_the_seed_decides_which_images_are_looked_at() -> None:
    settings, images = tiny(), striped(4, 3)
    started = []
    for seed in (0, 0, 1):
        model = build_model(settings)
        start_from_tokens(model, images, settings.data, 16, 3, seed)
        assert model.training
        started.append(model.head.layer.prototypes.detach().clone())
    assert torch.equal(started[0], started[1])
    assert not torch.equal(started[0], started[2])


def test_a_layer_without_prototypes_is_refused() -> None:
    settings = tiny()
    settings.model.pooling, settings.model.pooling_options = "gap", {}
    with pytest.raises(ValueError, match="one GSP layer"):
        start_from_tokens(build_model(settings), striped(4, 3), settings.data, 16, 3, 0)
