"""The optimiser of a run: which parameters move how fast, and what decays."""

from __future__ import annotations

import pytest
import torch

from gspool.training import fit
from gspool.training.config import OptimiserConfig
from gspool.training.metric_learning import ModelAndLoss, build_loss, build_model, build_optimiser
from training.tiny_run import tiny


def training(loss: str = "pnca") -> ModelAndLoss:
    config = tiny()
    config.loss.name, config.loss.zsr = loss, 0.1
    model = build_model(config)
    return ModelAndLoss(model, build_loss(config.loss, 10, model.out_dim, 12, seed=0))


def settings_of(module, config: OptimiserConfig) -> dict[str, tuple[float, float]]:
    """Return the learning rate and the decay of every parameter by its name."""
    optimiser = build_optimiser(config, module)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    found = {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in optimiser.param_groups
        for parameter in group["params"]
    }
    assert set(found) == {name for name, each in module.named_parameters() if each.requires_grad}
    return found


def test_proxies_learn_faster_and_normalisation_does_not_decay():
    config = OptimiserConfig(
        lr=1e-3, weight_decay=1e-4, proxies=100.0, multipliers={"backbone": 0.1, "prototypes": 2.0}
    )
    found = settings_of(training(), config)
    norms = {name for name, part in training().named_modules() if isinstance(part, torch.nn.BatchNorm2d)}
    assert norms
    for name, (rate, decay) in found.items():
        factor = 100.0 if name.startswith("loss.metric") else 0.1 if "backbone" in name else 1.0
        factor *= 2.0 if "prototypes" in name else 1.0
        assert rate == pytest.approx(1e-3 * factor), name
        assert decay == (0.0 if name.rpartition(".")[0] in norms else 1e-4), name
    assert any(name.startswith("loss.zsr") for name in found)


@pytest.mark.parametrize(
    ("name", "decay", "expected"),
    [
        # The second step moves by the gradient and the momentum; TensorFlow's RMSProp begins with a mean square of 1.
        ("sgd", 0.0, [1 - 0.1 * 1.9, 1 - 0.1 * 1.9 - 0.1 * (1 + 0.9 * 1.9)]),
        ("rmsprop", 0.0, [1 - 0.1, 1 - 0.1 - 0.1 * 1.9]),
        # The first step of Adam is the learning rate, whatever the size of the gradient and of a decay inside it.
        ("adam", 0.5, [1 - 0.1]),
        ("adamw", 0.5, [1 * (1 - 0.1 * 0.5) - 0.1]),
        # That of RAdam is the gradient, decay inside: it does not divide by squares that it hardly knows.
        ("radam", 0.5, [1 - 0.1 * 1.5]),
    ],
)
def test_every_optimiser_makes_its_steps(name, decay, expected):
    module = torch.nn.Module()
    module.model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(module.model.weight)
    optimiser = build_optimiser(OptimiserConfig(name, lr=0.1, weight_decay=decay, betas=(0.9, 0.9), eps=0.0), module)
    for value in expected:
        module.model.weight.grad = torch.ones(1, 1)
        optimiser.step()
        assert module.model.weight.item() == pytest.approx(value)


def test_a_loss_without_parameters_needs_no_proxies():
    found = settings_of(training("c2"), OptimiserConfig(lr=1e-3, proxies=100.0))
    assert {rate for rate, _ in found.values()} == {1e-3}


def test_gradients_are_clipped_by_their_global_norm(config, tmp_path, monkeypatch):
    norms, step = [], torch.optim.Adam.step

    def watched(optimiser, *arguments, **options):
        answer = step(optimiser, *arguments, **options)
        gradients = [each.grad for group in optimiser.param_groups for each in group["params"] if each.grad is not None]
        norms.append(float(torch.stack([gradient.norm() for gradient in gradients]).norm()))
        return answer

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    config.optimiser.clip, config.trainer.monitor_split = 0.05, "none"
    fit(config, tmp_path / "clipped")
    assert len(norms) == 6
    assert max(norms) == pytest.approx(0.05, rel=1e-3)
    norms.clear()
    config.optimiser.clip = 0.0
    fit(config, tmp_path / "free")
    assert min(norms) > 0.05
