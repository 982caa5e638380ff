"""The loop itself, and options of a run that change how it is made and not what it computes."""

from __future__ import annotations

import pytest
import torch

from gspool.losses import LossParts
from gspool.training import fit, train
from gspool.training.config import ScheduleConfig, TrainerConfig
from gspool.training.loop import Task, run_loop, set_learning_rate
from gspool.training.processes import make_fabric
from training.tiny_run import tiny


class Parabola(Task):
    """One number that is pulled towards 3; what is measured is scripted."""

    def __init__(self, *scripted: float) -> None:
        self.module = torch.nn.Linear(1, 1, bias=False)
        self.scripted = list(scripted)
        torch.nn.init.zeros_(self.module.weight)
        self.states: list[float] = []

    def optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.module.parameters(), 0.1)

    def batches(self, first: int, last: int) -> list[int]:
        return list(range(first, last))

    def loss(self, batch: int, step: int) -> LossParts:
        assert batch == step
        loss = (self.module.weight - 3).square().sum()
        return LossParts(loss, loss)

    def evaluate(self) -> dict[str, float]:
        self.states.append(self.module.weight.item())
        return {"score": self.scripted.pop(0)} if self.scripted else {}


def run(task: Task, **trainer):
    settings = TrainerConfig(**{"evaluate_every": 2, "monitor": "score", "progress": False, "max_steps": 8, **trainer})
    return run_loop(task, make_fabric(settings), settings, ScheduleConfig())


def test_a_task_of_ones_own_is_trained_without_a_folder():
    task = Parabola()
    outcome = run(task, max_steps=50)
    assert task.module.weight.item() == pytest.approx(3.0, abs=1e-3)
    assert (outcome.steps, outcome.best_step, outcome.best_value, outcome.ending) == (50, 50, None, "max_steps")


def test_the_module_ends_with_the_best_state():
    task = Parabola(0.1, 0.9, 0.3, 0.2)
    outcome = run(task)
    assert (outcome.steps, outcome.best_step, outcome.best_value) == (8, 4, 0.9)
    assert task.module.weight.item() == task.states[1]
    assert [(row["step"], row["score"]) for row in outcome.curve] == [(2, 0.1), (4, 0.9), (6, 0.3), (8, 0.2)]


def test_patience_ends_a_training():
    outcome = run(Parabola(0.5, 0.4, 0.3, 0.6), patience=2)
    assert (outcome.steps, outcome.ending) == (6, "patience")


def test_time_ends_a_training_at_an_evaluation():
    outcome = run(Parabola(0.5, 0.4, 0.6), max_seconds=1e-9)
    assert (outcome.steps, outcome.ending) == (2, "time")


@pytest.mark.parametrize("name", ["cosine", "one-cycle"])
def test_rates_of_a_schedule_follow_each_groups_own(name):
    groups = [{"lr": 0.0, "full_lr": rate} for rate in (1.0, 10.0)]
    rates = []
    for step in range(20):
        set_learning_rate(groups, ScheduleConfig(name, ramp=0.25), step, 20)
        rates.append(groups[0]["lr"])
        assert groups[1]["lr"] == pytest.approx(10 * rates[-1])
    assert max(rates) == rates[5] == 1.0
    assert rates[-1] < 0.1


def test_a_run_that_time_ended_goes_on_to_the_same_numbers(config, tmp_path):
    whole = fit(config, tmp_path / "whole")
    config.trainer.max_seconds = 1e-9
    parts = fit(config, tmp_path / "parts")
    assert (parts.steps, parts.ending) == (3, "time")
    assert parts.metrics
    config.trainer.max_seconds = 0.0
    rest = fit(config, tmp_path / "parts")
    assert (rest.ending, rest.metrics, rest.curve) == ("max_steps", whole.metrics, whole.curve)


def test_compiling_goes_through_the_backbone_and_computes_the_same(config, tmp_path, monkeypatch):
    config.trainer.max_steps = config.trainer.evaluate_every = 2
    plain = fit(config, tmp_path / "plain")
    compiled, compile_module = [], torch.nn.Module.compile

    def traced(module):
        # The backend that only traces: generating C++ would take a minute, and is torch's to test.
        compiled.append(module)
        compile_module(module, backend="eager")

    monkeypatch.setattr(torch.nn.Module, "compile", traced)
    config.trainer.compile = True
    result = fit(config, tmp_path / "compiled")
    assert [type(module).__name__ for module in compiled] == ["SmallCNN"]
    for ours, theirs in zip(result.curve, plain.curve, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


def test_embeddings_of_the_test_images_are_kept_where_asked(config, tmp_path):
    from safetensors.torch import load_file

    from gspool.evaluation import retrieval_metrics

    config.output.embeddings = True
    result = fit(config, tmp_path)
    kept = load_file(tmp_path / "embeddings.safetensors")
    metrics = retrieval_metrics(kept["embeddings"], kept["labels"])
    assert metrics["map@r"] == pytest.approx(result.metrics["map@r"])


def test_the_test_images_are_embedded_once_for_figures_and_report(tmp_path, monkeypatch):
    from gspool.training import embed

    embedded, real = [], embed.embed_images

    def counted(model, images, **options):
        embedded.append((images.split, next(model.parameters()).device))
        return real(model, images, **options)

    monkeypatch.setattr(embed, "embed_images", counted)
    config = tiny(max_steps=1, evaluate_every=1)
    config.output.report, config.output.folder = True, str(tmp_path / "run")
    assert train(config).report.exists()
    assert [split for split, _ in embedded] == ["validation", "test"]
