"""The loop itself, and options of a run that change how it is made and not what it computes."""

from __future__ import annotations

import itertools

import pytest
import torch
from safetensors.torch import load_file

from gspool.evaluation import retrieval_metrics
from gspool.losses import LossParts
from gspool.models import Embedder
from gspool.training import embed, fit, train
from gspool.training.config import ScheduleConfig, TrainerConfig
from gspool.training.gpu_data import TensorSet
from gspool.training.loop import Task, run_loop, set_learning_rate
from gspool.training.monitor import Monitor
from gspool.training.processes import make_fabric, precision_of
from training.tiny_run import tiny

VALUES = [0.1, 0.3, 0.2, 0.3, 0.25, 0.4, 0.1, 0.1, 0.1, 0.1]


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


@pytest.mark.parametrize(
    ("trainer", "steps", "ending"),
    [({}, 8, "max_steps"), ({"patience": 2}, 6, "patience"), ({"max_seconds": 1e-9}, 2, "time")],
)
def test_a_training_ends_with_the_best_state(trainer, steps, ending):
    scores = [0.5, 0.4, 0.3, 0.9][: steps // 2]
    task = Parabola(*scores)
    outcome = run(task, **trainer)
    assert (outcome.steps, outcome.ending, outcome.best_value) == (steps, ending, max(scores))
    best = scores.index(max(scores))
    assert outcome.best_step == 2 * best + 2
    assert task.module.weight.item() == task.states[best]
    assert [(row["step"], row["score"]) for row in outcome.curve] == [*zip(range(2, 9, 2), scores, strict=False)]


def test_the_rate_falls_when_torch_s_plateau_schedule_lets_it_fall():
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, mode="max", factor=0.5, patience=1, threshold=0.0, threshold_mode="abs"
    )
    monitor, rate = Monitor(plateau=1), 1.0
    for step, value in enumerate(VALUES):
        reference.step(value)
        rate *= 0.5 if monitor.judge(step, value).lr_falls else 1.0
        assert rate == optimiser.param_groups[0]["lr"], step
    assert rate < 1.0


def test_a_restored_monitor_goes_on_alike():
    whole = Monitor(patience=4, plateau=1)
    verdicts = [whole.judge(step, value) for step, value in enumerate(VALUES)]
    first, second = Monitor(patience=4, plateau=1), Monitor(patience=4, plateau=1)
    for step, value in enumerate(VALUES[:5]):
        first.judge(step, value)
    second.load_state_dict(first.state_dict())
    assert [second.judge(step, VALUES[step]) for step in range(5, len(VALUES))] == verdicts[5:]


@pytest.mark.parametrize("name", ["cosine", "one-cycle"])
@pytest.mark.parametrize("ramp", [0.0, 0.1, 0.5])
def test_rates_rise_then_fall_to_nothing_in_each_group(name, ramp):
    groups, rates, peak = [{"lr": 0.0, "full_lr": rate} for rate in (1.0, 10.0)], [], round(200 * ramp)
    for step in range(201):
        set_learning_rate(groups, ScheduleConfig(name, ramp=ramp), step, 200)
        rates.append(groups[0]["lr"])
        assert groups[1]["lr"] == pytest.approx(10 * rates[-1])
    assert rates[peak] == pytest.approx(1.0)
    assert rates[200] == pytest.approx(0.0, abs=1e-12)
    assert all(a < b for a, b in itertools.pairwise(rates[: peak + 1]))
    assert all(a > b for a, b in itertools.pairwise(rates[peak:]))
    assert rates[(200 + peak) // 2] == pytest.approx(0.5, abs=0.02)


def test_a_run_that_time_ended_goes_on_to_the_same_numbers(config, tmp_path):
    whole = fit(config, tmp_path / "whole")
    config.trainer.max_seconds = 1e-9
    parts = fit(config, tmp_path / "parts")
    assert (parts.steps, parts.ending) == (3, "time")
    assert parts.metrics
    config.trainer.max_seconds = 0.0
    rest = fit(config, tmp_path / "parts")
    assert (rest.ending, rest.metrics, rest.curve) == ("max_steps", whole.metrics, whole.curve)


@pytest.mark.parametrize("backbone", ["small_cnn", "timm/test_resnet"])
def test_compiling_goes_through_the_backbone_and_computes_the_same(config, tmp_path, monkeypatch, backbone):
    if backbone != "small_cnn":
        config.model.backbone, config.model.backbone_options = backbone, {"pretrained": False}
    config.trainer.max_steps = config.trainer.evaluate_every = 2
    plain = fit(config, tmp_path / "plain")
    graphs, compile_module = [], torch.nn.Module.compile

    def traced(graph, inputs):
        # A backend that only traces: generating C++ would take a minute, and is torch's to test.
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compile_module(module, backend=traced))
    config.trainer.compile = True
    result = fit(config, tmp_path / "compiled")
    assert graphs
    for ours, theirs in zip(result.curve, plain.curve, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


def test_a_backbone_is_compiled_when_it_begins_to_learn(config, tmp_path, monkeypatch):
    # A graph of the frozen backbone has no gradient, and torch 2.11 goes on with it after the warm-up.
    done, freeze = [], Embedder.freeze
    monkeypatch.setattr(Embedder, "freeze", lambda model, what: (done.append(what), freeze(model, what))[1])
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: done.append("compile"))
    config.schedule.warmup_epochs, config.trainer.compile = 1e-9, True
    config.trainer.max_steps = config.trainer.evaluate_every = 2
    fit(config, tmp_path)
    assert done[-4:-1] == ["all", config.model.freeze, "compile"]


@pytest.mark.parametrize("queries", [None, torch.arange(24) < 12])
def test_embeddings_of_the_test_images_are_kept_where_asked(config, tmp_path, queries):
    pixels = torch.randint(256, (24, 3, 16, 16), dtype=torch.uint8)
    images = TensorSet.of(pixels, torch.arange(24) % 6, queries=queries)
    config.output.embeddings = True
    result = fit(config, tmp_path, sets={"train": images, "validation": images, "test": images})
    kept = load_file(tmp_path / "embeddings.safetensors")
    parts = [kept[name] for name in ("embeddings", "labels", "gallery", "gallery_labels") if name in kept]
    assert len(parts) == (2 if queries is None else 4)
    assert retrieval_metrics(*parts)["map@r"] == pytest.approx(result.metrics["map@r"])


def test_the_test_images_are_embedded_once_for_figures_and_report(tmp_path, monkeypatch):
    embedded, real = [], embed.embed_images

    def counted(model, images, **options):
        embedded.append((images.split, next(model.parameters()).device))
        return real(model, images, **options)

    monkeypatch.setattr(embed, "embed_images", counted)
    config = tiny(max_steps=1, evaluate_every=1)
    config.output.report, config.output.folder = True, str(tmp_path / "run")
    assert train(config).report.exists()
    assert [split for split, _ in embedded] == ["validation", "test"]


@pytest.mark.parametrize("able", [True, False])
def test_automatic_precision_is_bf16_where_the_cpu_computes_in_it(able, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": able}, raising=False)
    trainer = TrainerConfig(precision="auto", accelerator="cpu")
    assert precision_of(trainer) == ("bf16-mixed" if able else "32-true")
    with make_fabric(trainer).autocast():
        assert torch.is_autocast_enabled("cpu") == able
    assert precision_of(TrainerConfig(precision="16-mixed")) == "16-mixed"
