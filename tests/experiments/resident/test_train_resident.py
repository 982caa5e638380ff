"""Training on resident data is training: the same steps as a plain loop, and the same run as `gspool.training.fit`."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from experiments.resident.tiny_sets import tiny
from gspool import data
from gspool.experiments.benchmark.stand_in import striped
from gspool.experiments.resident import (
    DivergedError,
    FeatureMapEmbedder,
    ResidentSet,
    load_resident,
    train_resident,
)
from gspool.experiments.resident.step import Learner
from gspool.experiments.resident.views import BatchPlan, training_view
from gspool.training import DataConfig, LossConfig, ScheduleConfig, fit
from gspool.training.build import build_loss, build_model


@pytest.fixture(scope="module")
def sets() -> dict[str, ResidentSet]:
    return {"train": striped(8, 6), "validation": striped(5, 4, seed=1), "test": striped(6, 4, seed=2)}


def trained(settings, sets, **options):
    return train_resident(settings, sets["train"], sets["validation"], sets["test"], "cpu", **options)


def untimed(curve):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in curve]


def test_it_is_the_run_that_fit_makes(tmp_path: Path) -> None:
    settings = tiny(max_steps=5, evaluate_every=2)
    settings.data = DataConfig(options={"images_per_class": 2, "size": 16}, classes_per_batch=6, images_per_class=2)
    settings.loss = LossConfig(name="c2", zsr=0.1)
    settings.model.pooling_options["warm_start"] = 24
    settings.schedule = ScheduleConfig(warmup_epochs=0.05)
    glyphs = {
        split: load_resident(data.create("glyphs", split=split, images_per_class=2, size=16), shorter_side=None)
        for split in ("train", "validation", "test")
    }
    ours = trained(settings, glyphs)
    theirs = fit(settings, tmp_path / "run")
    assert ours.metrics == pytest.approx(theirs.metrics, abs=1e-12)
    assert (ours.steps, ours.best_step) == (theirs.steps, theirs.best_step)
    assert ours.entropy == pytest.approx(theirs.weights_entropy, abs=1e-9)
    assert ours.validation == pytest.approx(theirs.validation, abs=1e-12)


def test_a_step_is_that_of_a_plain_loop(sets: dict[str, ResidentSet]) -> None:
    settings = tiny()
    settings.optimiser.clip = 0.5
    model = build_model(settings)
    loss = build_loss(settings.loss, 8, model.out_dim, settings.data.batch_size, 0)
    plain_model, plain_loss = copy.deepcopy(model), copy.deepcopy(loss)
    learner = Learner(model, loss, settings).train()
    plain_model.train()
    parameters = [*plain_model.parameters(), *plain_loss.parameters()]
    proxies = {id(each) for each in plain_loss.parameters()}
    norms = {
        id(each)
        for part in plain_model.modules()
        if isinstance(part, torch.nn.BatchNorm2d)
        for each in part.parameters()
    }
    moments = {id(each): (torch.zeros_like(each), torch.zeros_like(each)) for each in parameters}
    plan = BatchPlan(sets["train"], settings.data, settings.trainer.seed)
    for step in range(3):
        places = plan.rows_of(step)
        images, labels = sets["train"].pixels[places], sets["train"].labels[places]
        learner.learn(images, labels, step)
        plain_loss.metric(plain_model(images), labels).backward()
        length = torch.stack([each.grad.norm() for each in parameters]).norm()
        rule = settings.optimiser
        for each in parameters:
            gradient = each.grad * min(1.0, rule.clip / (float(length) + 1e-6))
            gradient = gradient + (0.0 if id(each) in norms else rule.weight_decay) * each.detach()
            first, second = moments[id(each)]
            first.mul_(rule.betas[0]).add_((1 - rule.betas[0]) * gradient)
            second.mul_(rule.betas[1]).add_((1 - rule.betas[1]) * gradient**2)
            ups = first / (1 - rule.betas[0] ** (step + 1))
            downs = (second / (1 - rule.betas[1] ** (step + 1))).sqrt() + rule.eps
            rate = rule.lr * (rule.proxies if id(each) in proxies else 1.0)
            with torch.no_grad():
                each -= rate * ups / downs
            each.grad = None
    for ours, theirs in zip([*learner.model.parameters(), *learner.loss.parameters()], parameters, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-6)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(sets: dict[str, ResidentSet]) -> None:
    first, again = (trained(tiny(), sets) for _ in range(2))
    assert torch.equal(first.embeddings, again.embeddings)
    assert untimed(first.curve) == untimed(again.curve)
    assert not torch.equal(first.embeddings, trained(tiny(seed=1), sets).embeddings)


def test_crops_are_drawn_anew_every_step_and_alike_every_time(sets: dict[str, ResidentSet]) -> None:
    places = torch.arange(6)
    crop = DataConfig(transform="crop")
    views = [
        training_view(sets["train"], places, crop, 12, seed, step) for seed, step in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert views[0].shape == (6, 3, 12, 12)
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    assert not torch.equal(views[0], views[3])


def test_it_learns(sets: dict[str, ResidentSet]) -> None:
    before, after = (tiny(max_steps=steps, evaluate_every=20, monitor_split="none") for steps in (1, 60))
    after.optimiser.lr = 1e-2
    before, after = trained(before, sets), trained(after, sets)
    assert after.metrics["map@r"] > before.metrics["map@r"] + 0.1


def test_the_best_model_is_measured_and_patience_ends_the_run(sets: dict[str, ResidentSet]) -> None:
    settings = tiny(max_steps=200, evaluate_every=1, patience=3)
    outcome = trained(settings, sets)
    values = [row["map@r"] for row in outcome.curve]
    assert outcome.ending == "patience"
    assert outcome.steps == outcome.best_step + 3
    assert values.index(max(values)) + 1 == outcome.best_step
    assert outcome.validation == max(values)
    stopped = tiny(max_steps=outcome.best_step, evaluate_every=1, monitor_split="none")
    assert trained(stopped, sets).metrics == outcome.metrics


def test_time_ends_a_run_at_an_evaluation(sets: dict[str, ResidentSet]) -> None:
    outcome = trained(tiny(max_steps=10_000, evaluate_every=2), sets, seconds=0.0)
    assert (outcome.ending, outcome.steps) == ("time", 2)


def test_learned_mu_and_epsilon_are_told(sets: dict[str, ResidentSet]) -> None:
    settings = tiny()
    settings.model.pooling_options |= {"learn_mu": True, "learn_epsilon": True}
    outcome = trained(settings, sets)
    assert outcome.learned["mu"] != 0.3
    assert outcome.learned["epsilon"] != 5.0
    assert set(outcome.record()) >= {"metrics", "curve", "learned", "entropy", "ending"}
    # Relative to equal weights, places weigh 1 on average, and GSP does not weigh them all alike.
    weights = outcome.record()["mean_weights"]
    assert sum(weights) / len(weights) == pytest.approx(1.0, abs=1e-3)
    assert max(weights) > min(weights)
    assert "embeddings" not in outcome.record()


def test_feature_maps_are_trained_on_as_images_are() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(4)
    centres = torch.randn(6, 16, generator=generator)
    maps = centres[labels][:, :, None, None] + 0.5 * torch.randn(24, 16, 3, 3, generator=generator)
    images = ResidentSet.of(maps, labels)
    model = FeatureMapEmbedder(16, "gsp", 8, prototypes=4)
    outcome = train_resident(tiny(max_steps=8), images, images, images, "cpu", model=model)
    assert outcome.metrics["p@1"] > 0.9
    assert outcome.embeddings.shape == (24, 8)


def test_a_gallery_is_searched_by_its_queries(sets: dict[str, ResidentSet]) -> None:
    test = sets["test"]
    asks = torch.arange(len(test)) % 4 == 0
    outcome = trained(tiny(), {**sets, "test": ResidentSet.of(test.pixels, test.labels, asks)})
    assert outcome.embeddings.shape == (6, 8)
    assert outcome.gallery is not None
    assert outcome.gallery.shape == (18, 8)


def test_a_loss_that_is_not_finite_is_told(sets: dict[str, ResidentSet]) -> None:
    settings = tiny()
    settings.optimiser.lr, settings.optimiser.clip = 1e30, 0.0
    with pytest.raises(DivergedError, match="step 2"):
        trained(settings, sets)


def test_wrong_settings_are_refused_before_training(sets: dict[str, ResidentSet]) -> None:
    with pytest.raises(ValueError, match="no validation set was given"):
        train_resident(tiny(), sets["train"], None, sets["test"], "cpu")
    with pytest.raises(ValueError, match="32-true and bf16-mixed, got '16-mixed'"):
        trained(tiny(precision="16-mixed"), sets)
    settings = tiny()
    settings.data.transform = "shift"
    with pytest.raises(ValueError, match="'crop' or 'none', got 'shift'"):
        trained(settings, sets)
    ragged = ResidentSet(
        torch.zeros(4, 3, 8, 8, dtype=torch.uint8),
        torch.tensor([[8, 8]] * 3 + [[8, 7]]),
        torch.arange(4),
        torch.arange(4) // 2,
    )
    with pytest.raises(ValueError, match="several sizes need the transform 'crop'"):
        train_resident(tiny(), ragged, sets["validation"], sets["test"], "cpu")


def test_a_person_sees_the_steps_and_the_last_evaluation(
    sets, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = trained(tiny(), sets)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("gspool.experiments.crew.bars.on_a_terminal", lambda: True)
    trained(tiny(), sets)
    shown = capsys.readouterr().out
    assert "pnca gsp" in shown
    assert "6/6" in shown
    # The last is measured after the last step.
    assert f"MAP@R {100 * outcome.curve[-2]['map@r']:.2f}, best at step" in shown
