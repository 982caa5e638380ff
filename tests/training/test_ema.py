"""The average of the weights: training does not feel it, and it is what is evaluated and saved."""

from __future__ import annotations

import pytest
import torch

from gspool import Embedder
from gspool.training import fit
from gspool.training.checkpoint import BEST, LAST, read_checkpoint
from gspool.training.ema import WeightAverage
from gspool.training.metric_learning import build_model
from training.tiny_run import tiny


def test_the_average_is_that_of_a_slow_loop_and_the_weights_come_back():
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    average = WeightAverage(module, decay=0.4)
    expected = {name: value.clone() for name, value in module.state_dict().items()}
    for step in range(1, 6):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += torch.randn_like(parameter)
        module(torch.randn(8, 2))
        average.update()
        kept = min(0.4, (1 + step) / (10 + step))
        for name, value in module.state_dict().items():
            expected[name] = value.clone() if "tracked" in name else kept * expected[name] + (1 - kept) * value
    own = {name: value.clone() for name, value in module.state_dict().items()}
    with average.in_place():
        for name, value in module.state_dict().items():
            torch.testing.assert_close(value, expected[name], msg=name)
    assert all(torch.equal(value, own[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("watched", ["validation", "none"])
def test_a_run_saves_the_average_and_trains_as_without_it(tmp_path, watched):
    def run(name: str, ema: float, model=None) -> dict[str, torch.Tensor]:
        config = tiny(monitor_split=watched, ema=ema)
        config.model.pooling_options["warm_start"] = 20  # its memory grows, and prototypes jump in the second step
        fit(config, tmp_path / name, model=model or build_model(config))
        return read_checkpoint(tmp_path / name / LAST)

    plain, averaged = run("plain", 0.0), run("averaged", 0.5)
    for name, value in plain["module"].items():
        assert torch.equal(value, averaged["module"][name]), name
    assert "ema" not in plain
    saved = Embedder.from_pretrained(tmp_path / "averaged" / "model").state_dict()
    own = {name: value for name, value in averaged["module"].items() if name.startswith("model.")}
    assert any(not torch.equal(value, saved[name.removeprefix("model.")]) for name, value in own.items())
    if watched == "none":
        expected = {name.removeprefix("model."): value for name, value in averaged["ema"]["averages"].items()}
    else:
        expected = read_checkpoint(tmp_path / "averaged" / BEST)["model"]
    assert all(torch.equal(value, expected[name]) for name, value in saved.items() if name in expected)
    # A finished run gives the same model to a caller.
    model = Embedder.from_pretrained(tmp_path / "plain" / "model")
    run("averaged", 0.5, model)
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
