"""The computation study: what it measures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gspool import provenance
from gspool.experiments import commands, computation
from gspool.experiments.experiment import RunOptions
from gspool.provenance import read_result


def test_a_tiny_run_measures_every_solver_and_finds_it_correct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert commands.run("reproduce", ["computation", "--quick", "--device", "cpu", "--results", "out"]) == 0
    record = read_result(Path("out/computation.json"))
    rows = record["value"]["rows"]
    assert [(row["way"], row["k"]) for row in rows] == [
        ("exact solver", None),
        *((way, k) for k in (1, 5) for way in ("closed form", "unrolled")),
    ]
    assert rows[0]["relative_error"] < 1e-5
    # More iterations come nearer to the solution, by either gradient alike.
    assert rows[1]["relative_error"] > rows[3]["relative_error"] == pytest.approx(rows[4]["relative_error"], rel=1e-2)
    table = computation.times(record).splitlines()
    assert len(table) == 2 + len(rows)
    assert Path("out/images/computation.png").is_file()


def test_rows_of_a_whole_network_stay_when_another_device_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = RunOptions(results=tmp_path, quick=True, settings=computation.ComputationSettings(part="network"))
    path = tmp_path / "computation_network.json"
    for device in ("a GPU", "a CPU", "a CPU"):
        monkeypatch.setattr(provenance, "device_name", lambda _, device=device: device)
        computation.run(chosen)
    record = read_result(path)
    assert [(row["device"], row["step"], row["images"]) for row in record["value"]] == [
        (device, *step) for device in ("a GPU", "a CPU") for step in (("inference", 1), ("training", 4))
    ]
    assert record["device"] == "a CPU, a GPU"
    assert not (tmp_path / "computation.json").exists()
    assert "| a CPU | small CNN | inference, 1 image |" in computation.network_table(record)
    computation.draw_network(record, tmp_path / "network.png")


@torch.no_grad()
def test_the_iterations_that_are_timed_pool_as_the_layer_does() -> None:
    network = computation.Network("small_cnn", "gsp", "cpu", classes=2, images_per_class=1)
    ours = network.model.head(network.features)
    theirs = computation.iterated_pool(network.model.head, network.features, 100)
    torch.testing.assert_close(theirs, torch.nn.functional.normalize(ours, dim=1), atol=1e-5, rtol=1e-4)
