"""Heads on stored tokens: they start as the frozen feature, never end worse, and become the same model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gspool.features import TokenLayout
from gspool.models import create_backbone
from gspool.training.config import DataConfig, LossConfig, OptimiserConfig, TrainConfig, TrainerConfig
from gspool.training.embed import evaluate_images
from gspool.training.gpu_data import TensorSet
from gspool.training.heads import (
    HeadConfig,
    as_embedder,
    build_head,
    head_config,
    principal_directions,
    start_head,
    train_head,
)
from gspool.training.metric_learning import build_loss

LAYOUT = TokenLayout(views=1, prefix=1, class_token=True, tokens=6, channels=8, grid=(2, 3), precision="fp32")


def rows(count: int = 40) -> torch.Tensor:
    return torch.randn(count, 7, 8, generator=torch.Generator().manual_seed(count)) + 1


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("gap", rows()[:, 1:].mean(1)),
        ("gmp", rows()[:, 1:].amax(1)),
        ("cls", rows()[:, 0]),
        ("ep", rows()[:, 1:].mean(1)),
    ],
)
def test_a_head_of_full_width_starts_as_the_frozen_feature(pooling, expected):
    model = build_head(pooling, LAYOUT, None, {}, HeadConfig(), seed=0).eval()
    if pooling == "ep":
        torch.nn.init.zeros_(model.head.queries)  # equal attention is average pooling
    start_head(model, rows())
    torch.testing.assert_close(model(rows()), F.normalize(expected, dim=1), rtol=1e-4, atol=1e-5)


def test_a_shorter_head_starts_with_the_directions_that_keep_the_angles_best():
    features = torch.randn(200, 8) * torch.tensor([5.0, 4, 3, 0.01, 0.01, 0.01, 0.01, 0.01])
    directions = principal_directions(features, 3)
    torch.testing.assert_close(directions @ directions.T, torch.eye(3), atol=1e-5, rtol=0)
    exact, kept = F.normalize(features, dim=1), F.normalize(features @ directions.T, dim=1)
    torch.testing.assert_close(kept @ kept.T, exact @ exact.T, atol=0.05, rtol=0)
    white = features @ principal_directions(features, 3, whiten=True).T
    torch.testing.assert_close(white.T @ white / 200, torch.eye(3), atol=1e-3, rtol=0)


@pytest.mark.parametrize("source", ["tokens", "means", "kmeans"])
@pytest.mark.parametrize("options", [{}, {"keys": 4}])
def test_prototypes_start_among_what_they_are_compared_with(source, options):
    config = HeadConfig(prototypes=source)
    model = build_head("gsp", LAYOUT, 8, {"prototypes": 5, **options}, config, seed=0)
    before = model.head.layer.prototypes
    start_head(model, rows())
    layer = model.head.layer
    assert layer.prototypes is before
    tokens = rows()[:, 1:]
    candidates = tokens.mean(1) if source == "means" else tokens.flatten(0, 1)
    keys = candidates if layer.key is None else layer.key(candidates)
    clipped = keys / keys.norm(dim=1, keepdim=True).clamp(min=1)
    nearest = torch.cdist(layer.prototypes, clipped, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    assert nearest.max() < (1e-5 if source != "kmeans" else 0.8)
    assert torch.pdist(layer.prototypes).min() > 1e-3


def test_dropout_leaves_out_tokens_and_channels_in_training_alone():
    config = HeadConfig(token_dropout=0.5, feature_dropout=0.5)
    model = build_head("gap", LAYOUT, None, {}, config, seed=0)
    tokens, _ = model.train().features(rows())
    assert tokens.shape == (40, 3, 8)
    assert ((tokens == 0).all(1).float().mean() - 0.5).abs() < 0.2
    assert model.eval().features(rows())[0].shape == (40, 8, 2, 3)


def learnable(seed: int = 0) -> dict[str, TensorSet]:
    """Classes differ in one token among noise: average pooling sees little of it."""
    generator = torch.Generator().manual_seed(seed)
    sets, first = {}, 0
    centres = 6 * torch.randn(24, 8, generator=generator)
    for split, classes in (("train", 12), ("validation", 6), ("test", 6)):
        labels = torch.arange(classes).repeat_interleave(8)
        tokens = torch.randn(len(labels), 7, 8, generator=generator)
        tokens[:, 1] += centres[first + labels]
        sets[split] = TensorSet.of(tokens, labels, split=split)
        first += classes
    return sets


def settings(**trainer) -> TrainConfig:
    return TrainConfig(
        data=DataConfig(classes_per_batch=6, images_per_class=4),
        loss=LossConfig("pnca"),
        optimiser=OptimiserConfig(lr=3e-3, weight_decay=0.0),
        trainer=TrainerConfig(
            **{"max_steps": 60, "evaluate_every": 20, "progress": False, "accelerator": "cpu", **trainer}
        ),
    )


def test_training_never_ends_worse_on_validation_than_it_starts():
    model = build_head("gap", LAYOUT, None, {}, HeadConfig(), seed=0)
    frozen = train_head(build_head("gap", LAYOUT, None, {}, HeadConfig(), seed=0), settings(), learnable(), learn=False)
    ruined = settings()
    ruined.optimiser.lr = 30.0
    result = train_head(model, ruined, learnable())
    assert result.validation["map@r"] >= frozen.validation["map@r"]
    assert (frozen.best_step, frozen.steps, frozen.parameters) == (0, 0, 0)


def test_the_same_seed_gives_the_same_head_and_learning_helps():
    results = [
        train_head(build_head("delf", LAYOUT, 4, {}, HeadConfig(start="random"), seed=1), settings(seed=1), learnable())
        for _ in range(2)
    ]
    assert results[0].test == results[1].test
    assert all(torch.equal(results[0].state[name], results[1].state[name]) for name in results[0].state)
    assert results[0].best_step > 0


@pytest.mark.parametrize(
    ("layer", "prototypes"), [("gsp", "model.head.layer.prototypes"), ("gsp+cls", "model.head.layer.layer.prototypes")]
)
def test_the_rate_multiplies_prototypes_and_neither_embeddings_nor_their_scale(layer, prototypes):
    model = build_head(layer, LAYOUT, 4, {"prototypes": 5}, HeadConfig(rate=30.0), seed=0)
    assert head_config(settings(), model).optimiser.multipliers == {prototypes: 30.0}


@pytest.mark.parametrize("name", ["pnca", "c2", "xbm+c1"])
def test_side_by_side_each_part_learns_as_if_alone_whatever_its_weight(name):
    images, found = learnable()["train"], []
    for scale in (0.2, 0.9):
        model = build_head("ep+cls", LAYOUT, 4, {"join": "concat", "patch_scale": scale}, HeadConfig(), seed=1)
        loss = build_loss(LossConfig(name), 12, model.out_dim, 24, 0, model.head.parts)
        total = loss(model(images.pixels), images.labels).total
        total.backward()
        found.append([total, *(each.grad for each in (*model.parameters(), *loss.parameters()))])
    torch.testing.assert_close(*found)
    parts = (model.head.project(images.pixels[:, 0]), model.head.layer(model.features(images.pixels)[0]))
    alone = build_loss(LossConfig(name), 12, model.out_dim, 24, 0, model.head.parts).metric.losses
    expected = sum(each(F.normalize(part), images.labels) for each, part in zip(alone, parts, strict=True))
    torch.testing.assert_close(found[0][0], expected)


@pytest.mark.parametrize("informed", ["patches", "class token"])
def test_validation_chooses_the_weight_of_the_patches(informed):
    sets = learnable()
    if informed == "class token":
        sets = {split: replace(each, pixels=each.pixels.flip(1).roll(-5, 1)) for split, each in sets.items()}
    model = build_head("ep+cls", LAYOUT, 4, {"join": "concat"}, HeadConfig(), seed=1)
    result = train_head(model, settings(), sets)
    weight = result.state["head.weight"]
    assert weight >= 0.7 if informed == "patches" else weight <= 0.2
    model.load_state_dict(result.state)
    assert evaluate_images(model, sets["validation"]).metrics["map@r"] == pytest.approx(result.validation["map@r"])


def test_a_classifier_reads_both_parts_together():
    assert build_loss(LossConfig("cross_entropy"), 5, 8, 24, 0, (4, 4)).metric.classifier.in_features == 8


@pytest.mark.parametrize("pooling", ["gsp", "gsp+cls", "ep+cls", "cls", "gemean+gsp"])
def test_a_head_on_stored_tokens_is_the_model_on_images(pooling):
    backbone = create_backbone("timm/test_vit", img_size=32).eval()
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    from gspool.models.pixels import PixelNormalisation

    with torch.no_grad():
        features = backbone.features(PixelNormalisation(backbone.pixels)(images))
    tokens = torch.cat([features.class_token[:, None], features.map.flatten(2).mT], 1)
    layout = TokenLayout(1, 1, True, 4, 64, (2, 2), "fp32")
    options = {"prototypes": 5} if "gsp" in pooling else {"join": "concat"} if pooling == "ep+cls" else {}
    head = build_head(pooling, layout, 16, options, HeadConfig(), seed=0).eval()
    model = as_embedder(backbone, "timm/test_vit", {"img_size": 32}, pooling, 16, options, head.state_dict())
    torch.testing.assert_close(model(images), head(tokens))


def test_a_layer_that_needs_a_class_token_is_refused_without_one():
    with pytest.raises(ValueError, match="class token"):
        build_head("gsp+cls", LAYOUT._replace(class_token=False, prefix=0), 8, {}, HeadConfig(), seed=0)
