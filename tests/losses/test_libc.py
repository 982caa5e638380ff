"""LIBC against loops over images, heads and classes, and in the training engine."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import torch

from gspool import Embedder, losses
from gspool.losses import LIBCLoss, MetricLoss
from gspool.training import TrainConfig, fit
from gspool.training.checkpoint import read_checkpoint
from gspool.training.metric_learning import MetricLearning, ModelAndLoss, build_loss, build_model, build_optimiser
from gspool.training.metrics_log import read_metrics
from gspool.training.processes import TrainingInterruptedError
from training.tiny_run import tiny

DIM, CLASSES = 6, 5
LABELS = torch.tensor([0, 0, 1, 1, 1, 4, 4])


def vectors() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(LABELS), DIM, dtype=torch.float64, generator=generator).requires_grad_()


def libc(**options) -> LIBCLoss:
    """Make a loss without dropout; every parameter is drawn, so that no bias of 0 hides a mistake."""
    torch.manual_seed(1)
    loss = LIBCLoss(CLASSES, DIM, **{"dropout": 0.0, **options}).double()
    for parameter in loss.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return loss


def layer_norm(x, weight, bias):
    mean = sum(x) / len(x)
    variance = sum((each - mean) ** 2 for each in x) / len(x)
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def message_passing(layer, h, heads):
    """Compute one layer image by image: softmax(q_i k_j / sqrt(d)) v_j in every head, residual, norm, feed-forward."""
    attention, width = layer.self_attn, DIM // heads
    query, key, value = (
        [weight @ x + bias for x in h]
        for weight, bias in zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True)
    )
    refined = []
    for i, x in enumerate(h):
        message = []
        for part in (slice(head * width, (head + 1) * width) for head in range(heads)):
            scores = [torch.exp(query[i][part] @ k[part] / width**0.5) for k in key]
            message.append(sum(s / sum(scores) * v[part] for s, v in zip(scores, value, strict=True)))
        message = attention.out_proj.weight @ torch.cat(message) + attention.out_proj.bias
        x = layer_norm(x + message, layer.norm1.weight, layer.norm1.bias)
        hidden = (layer.linear1.weight @ x + layer.linear1.bias).clamp(min=0)
        forward = layer.linear2.weight @ hidden + layer.linear2.bias
        refined.append(layer_norm(x + forward, layer.norm2.weight, layer.norm2.bias))
    return refined


def mean_cross_entropy(logits, temperature, smoothing):
    total = 0.0
    for row, label in zip(logits, LABELS.tolist(), strict=True):
        weights = [torch.exp(each / temperature) for each in row]
        for k, weight in enumerate(weights):
            target = (1 - smoothing) * (k == label) + smoothing / CLASSES
            total = total - target * torch.log(weight / sum(weights))
    return total / len(logits)


def slow_libc(loss, x, heads, temperature, smoothing, auxiliary):
    h = [loss.project.weight @ (row / row.square().sum().sqrt()) + loss.project.bias for row in x]
    for layer in loss.layers:
        h = message_passing(layer, h, heads)
    mean = sum(h) / len(h)
    variance = sum((row - mean) ** 2 for row in h) / len(h)
    normal = [(row - mean) / (variance + 1e-5).sqrt() * loss.norm.weight + loss.norm.bias for row in h]
    refined = [loss.refined.weight @ row for row in normal]
    own = [loss.auxiliary.weight @ row + loss.auxiliary.bias for row in x]
    terms = [mean_cross_entropy(logits, temperature, smoothing) for logits in (refined, own)]
    return terms[0] + auxiliary * terms[1]


@pytest.mark.parametrize(
    ("layers", "heads", "temperature", "smoothing", "auxiliary"),
    [(1, 2, 0.2, 0.1, 1.0), (2, 3, 0.7, 0.0, 0.5), (3, 1, 1.0, 0.3, 0.0)],
)
def test_values_and_gradients_equal_the_loop(layers, heads, temperature, smoothing, auxiliary):
    loss = libc(
        layers=layers,
        heads=heads,
        temperature=temperature,
        label_smoothing=smoothing,
        auxiliary_weight=auxiliary,
    )
    x = vectors()
    learned = [x, *(each for each in loss.parameters() if each.requires_grad)]
    fast, slow = loss(x, LABELS), slow_libc(loss, x, heads, temperature, smoothing, auxiliary)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    for left, right in zip(
        torch.autograd.grad(fast, learned),
        torch.autograd.grad(slow, learned, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-10)


def test_gradients_agree_with_finite_differences():
    loss = libc(layers=2)
    assert torch.autograd.gradcheck(lambda x: loss(x, LABELS), vectors())


def test_order_of_the_batch_does_not_matter():
    loss, x, order = libc(layers=2), vectors(), torch.tensor([3, 0, 6, 2, 5, 1, 4])
    torch.testing.assert_close(loss(x[order], LABELS[order]), loss(x, LABELS))
    torch.testing.assert_close(loss.refine(x[order]), loss.refine(x)[order])


def test_every_image_hears_of_every_other():
    x, loss = vectors(), libc()
    (gradient,) = torch.autograd.grad(loss.refine(x)[0].sin().sum(), x)
    assert (gradient.abs().sum(1) > 0).all()


def test_it_learns_to_classify_the_batch():
    torch.manual_seed(0)
    loss = LIBCLoss(CLASSES, DIM, label_smoothing=0.0)
    x = torch.randn(len(LABELS), DIM, requires_grad=True)
    optimiser = torch.optim.Adam([x, *loss.parameters()], lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        loss(x, LABELS).backward()
        optimiser.step()
    assert (loss.auxiliary(x).argmax(1) == LABELS).all()
    assert loss.eval()(x, LABELS) < 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 4}, "4 heads do not divide 6 numbers"),
        ({"heads": 0}, "heads must be a positive integer, got 0"),
        ({"layers": 1.5}, "layers must be a positive integer, got 1.5"),
        ({"temperature": 0.0}, "temperature .* must be positive, got 0.0"),
        ({"label_smoothing": 1.0}, r"label_smoothing must lie in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"dropout must lie in \[0, 1\), got -0.1"),
        ({"auxiliary_weight": -1.0}, "auxiliary_weight .* must not be negative, got -1.0"),
        ({"head": 2}, "no option 'head', did you mean 'heads'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        losses.create("libc", CLASSES, DIM, **options)


def test_it_goes_with_neither_a_memory_nor_a_miner():
    with pytest.raises(ValueError, match="computed on one batch as a whole and cannot be used with a memory"):
        losses.create("xbm+libc", CLASSES, DIM)
    with pytest.raises(ValueError, match="no pairs for a miner to choose"):
        MetricLoss(LIBCLoss(CLASSES, DIM), miner=losses.create_miner("MultiSimilarityMiner"))


def test_presets_hold_its_authors_values_and_it_needs_torch_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    loss = losses.create("libc", 98, 16, preset="cars196")
    assert len(loss.layers) == 2
    assert loss.layers[0].self_attn.num_heads == 8
    assert loss.temperature == pytest.approx(1 / 9, abs=1e-4)


@pytest.fixture
def config() -> TrainConfig:
    config = tiny(max_steps=4, evaluate_every=2)
    config.loss.name, config.loss.options = "libc", {"layers": 2, "heads": 4}
    config.loss.zsr = 0.2
    return config


def test_the_message_passing_has_a_learning_rate_of_its_own(config):
    config.optimiser.proxies = 3.0
    module = ModelAndLoss(build_model(config), build_loss(config.loss, 10, 8, 12, seed=0))
    rates = {
        id(p): group["lr"] for group in build_optimiser(config.optimiser, module).param_groups for p in group["params"]
    }
    assert all(rates[id(parameter)] == pytest.approx(3e-3) for parameter in module.loss.metric.parameters())
    assert all(rates[id(parameter)] == pytest.approx(1e-3) for parameter in module.model.parameters())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_two_steps_move_the_messages_and_the_model_goes_without_them(config, tmp_path, precision):
    config.trainer.max_steps, config.trainer.precision = 2, precision
    assert fit(config, tmp_path).steps == 2
    classes = len(read_checkpoint(tmp_path / "last.pt")["module"]["loss.metric.refined.weight"])
    before = build_loss(config.loss, classes, 8, 12, config.trainer.seed).state_dict()
    after = read_checkpoint(tmp_path / "last.pt")["module"]
    still = {name for name, value in before.items() if torch.equal(value, after[f"loss.{name}"])}
    assert still == {"metric.norm.bias"}
    assert not [name for name in Embedder.from_pretrained(tmp_path / "model").state_dict() if "metric" in name]


def test_an_interrupted_run_goes_on_to_the_same_numbers(config, tmp_path, monkeypatch):
    fit(config, tmp_path / "whole")
    loss = MetricLearning.loss

    def interrupted_step(task, batch, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return loss(task, batch, step)

    monkeypatch.setattr(MetricLearning, "loss", interrupted_step)
    with pytest.raises(TrainingInterruptedError, match="stopped after step 3"):
        fit(config, tmp_path / "parts")
    monkeypatch.undo()
    fit(config, tmp_path / "parts")
    whole, parts = (read_checkpoint(tmp_path / each / "last.pt")["module"] for each in ("whole", "parts"))
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
    whole, parts = ([row.get("loss") for row in read_metrics(tmp_path / each)] for each in ("whole", "parts"))
    assert whole == parts
