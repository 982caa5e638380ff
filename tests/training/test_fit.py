"""Whole runs, as small as they get: what is learned, what is kept, what stops them."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading

import pytest
import torch

from gspool import Embedder
from gspool.training import FitResult, checkpoint, fit, read_config, train
from gspool.training.checkpoint import CheckpointError, full_disk_explained, read_checkpoint
from gspool.training.loop import NonFiniteLossError
from gspool.training.metric_learning import MetricLearning, build_model
from gspool.training.metrics_log import MetricsLog, read_metrics
from gspool.training.presets import changed
from gspool.training.processes import TrainingInterruptedError
from gspool.training.run_folder import only_training
from training.interrupted_runs import numbers_of
from training.tiny_run import interrupt_at, script_evaluations, tiny


def weights_of(folder) -> dict[str, torch.Tensor]:
    return Embedder.from_pretrained(folder / "model").state_dict()


def assert_same_run(one: FitResult, other: FitResult) -> None:
    """Compare all but the places and the times of two runs."""
    assert numbers_of(one.folder) == numbers_of(other.folder)
    theirs = weights_of(other.folder)
    for name, value in weights_of(one.folder).items():
        assert torch.equal(value, theirs[name]), name


def test_the_folder_tells_how_the_model_came_about(config, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    result = fit(config, tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
    assert " ".join(sorted(path.name for path in tmp_path.iterdir())) == (
        "best.pt classes.csv config.yaml last.pt log.txt metrics.csv model previous.pt result.json tensorboard "
        "threshold.json versions.json"
    )
    assert read_config(tmp_path / "config.yaml") == config
    assert json.loads((tmp_path / "versions.json").read_text())["packages"]["torch"] == torch.__version__.split("+")[0]
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows if "map@r" in row] == [3, 6]
    assert result.validation == max(row["map@r"] for row in rows if "map@r" in row)
    assert set(result.metrics) == {"p@1", "p@r", "map@r", "r@1", "r@2", "r@4", "r@8"}
    assert "from step 0" in (tmp_path / "log.txt").read_text()
    assert any((tmp_path / "tensorboard").iterdir())


def test_a_finished_run_is_read_and_not_made_again(config, tmp_path, monkeypatch):
    first = fit(config, tmp_path)
    monkeypatch.setattr(MetricLearning, "loss", None)
    assert fit(config, tmp_path) == first
    # Version 0.1 wrote less.
    figures = json.loads((tmp_path / "result.json").read_text())
    del figures["vectors_seen"], figures["before"], figures["intervals"], figures["threshold"]
    (tmp_path / "result.json").write_text(json.dumps(figures))
    assert fit(config, tmp_path) == first._replace(intervals={}, threshold=None)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(config, tmp_path):
    first = fit(config, tmp_path / "first")
    torch.manual_seed(99)
    assert_same_run(first, fit(config, tmp_path / "again"))
    config.trainer.seed = 1
    other = fit(config, tmp_path / "other")
    assert any(not torch.equal(a, weights_of(other.folder)[n]) for n, a in weights_of(first.folder).items())


def test_the_loss_falls(config, tmp_path):
    config.trainer.max_steps = config.trainer.evaluate_every = 40
    config.optimiser.lr = 1e-2
    fit(config, tmp_path)
    losses = [row["loss"] for row in read_metrics(tmp_path) if "loss" in row]
    assert sum(losses[-8:]) / 8 < sum(losses[:8]) / 8 - 0.1


@pytest.mark.parametrize("loss", ["c1", "xbm+c1"])
def test_stopping_in_the_middle_and_resuming_changes_nothing(config, tmp_path, loss, monkeypatch):
    """Ctrl-C after step 4, between two evaluations; XBM brings a memory that must be restored."""
    config.loss.name, config.loss.options = loss, {"start": 2, "memory_batches": 3} if loss != "c1" else {}
    config.loss.zsr = 0.3
    config.model.pooling_options["warm_start"] = 30
    config.schedule.name, config.schedule.patience = "plateau", 0
    config.data.transform, config.data.transform_options = "shift", {"shift": 1}
    whole = fit(config, tmp_path / "whole")
    interrupt_at(3, monkeypatch)
    with pytest.raises(TrainingInterruptedError, match="stopped after step 4; go on with: gspool train --resume"):
        fit(config, tmp_path / "parts")
    monkeypatch.undo()
    assert read_checkpoint(tmp_path / "parts" / "last.pt")["step"] == 4
    assert_same_run(fit(config, tmp_path / "parts"), whole)


def test_a_run_in_another_thread_trains_too(config, tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(fit(config, tmp_path)))
    thread.start()
    thread.join()
    assert results[0].steps == 6


def test_early_stopping_keeps_the_best(config, tmp_path, monkeypatch):
    script_evaluations(monkeypatch, 0.2, 0.5, 0.4, 0.3)
    config.trainer.max_steps, config.trainer.evaluate_every, config.trainer.patience = 50, 2, 2
    result = fit(config, tmp_path)
    assert (result.best_step, result.steps, result.validation) == (4, 8, 0.5)
    best = read_checkpoint(tmp_path / "best.pt")
    assert best["step"] == 4
    saved = weights_of(tmp_path)
    assert all(torch.equal(value, saved[name]) for name, value in best["model"].items())


@pytest.mark.parametrize(("warm_start", "seen"), [(24, None), (1024, 6 * 12)])
def test_a_warm_start_that_did_not_end_is_told(config, tmp_path, warm_start, seen):
    config.model.pooling_options["warm_start"] = warm_start
    config.trainer.monitor_split = "none"
    result = fit(config, tmp_path)
    # Nothing is watched, so the last model is kept.
    assert (result.best_step, result.validation, result.vectors_seen) == (6, None, seen)
    assert not (tmp_path / "best.pt").exists()
    assert fit(config, tmp_path) == result  # read from its folder
    told = "has seen 72 vectors and warm_start asks for 1,024" in (tmp_path / "log.txt").read_text()
    assert told is (seen is not None)


def test_a_best_model_from_within_the_warm_start_is_told_though_training_went_past_it(config, tmp_path, monkeypatch):
    script_evaluations(monkeypatch, 0.5, 0.4)
    config.model.pooling_options["warm_start"] = 4 * 12  # the evaluations are at steps 3 and 6
    result = fit(config, tmp_path)
    assert (result.best_step, result.steps, result.vectors_seen) == (3, 6, 3 * 12)


@pytest.mark.parametrize(("epochs", "backbone_moves"), [(1.0, False), (0.05, True)])
def test_the_backbone_moves_after_the_warm_up_alone(config, tmp_path, epochs, backbone_moves):
    config.schedule.warmup_epochs = epochs  # an epoch has 33 steps, the run 6
    config.trainer.monitor_split = "none"
    fit(config, tmp_path)
    before, after = build_model(config).state_dict(), weights_of(tmp_path)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.startswith("head.") for name in moved)
    assert any(name.startswith("backbone.") for name in moved) == backbone_moves
    assert Embedder.from_pretrained(tmp_path / "model").settings.freeze == "none"


def test_frozen_batch_norm_keeps_its_statistics(config, tmp_path):
    config.model.freeze, config.trainer.monitor_split = "batchnorm", "none"
    fit(config, tmp_path)
    after = weights_of(tmp_path)
    means = [value for name, value in after.items() if name.endswith("running_mean")]
    assert means
    assert all(torch.equal(mean, torch.zeros_like(mean)) for mean in means)


def test_half_precision_trains(config, tmp_path):
    config.trainer.precision = "bf16-mixed"
    assert fit(config, tmp_path).steps == 6


def test_nan_stops_names_the_place_and_keeps_the_last_good_state(config, tmp_path, monkeypatch):
    loss = MetricLearning.loss

    def poisoned(task, batch, step):
        parts = loss(task, batch, step)
        factor = float("nan") if step == 4 else 1.0
        return parts._replace(total=parts.total * factor, metric=parts.metric * factor)

    monkeypatch.setattr(MetricLearning, "loss", poisoned)
    with pytest.raises(NonFiniteLossError, match=r"loss is nan at step 5 .*metric loss nan.*glyph \d+.*last\.pt"):
        fit(config, tmp_path)
    state = read_checkpoint(tmp_path / "last.pt")
    assert state["step"] == 3
    assert all(value.isfinite().all() for value in state["module"].values())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("where", ["last.pt", "metrics.csv"])
def test_a_full_disk_keeps_the_last_good_checkpoint(config, tmp_path, monkeypatch, where, number):
    write, add = checkpoint.write_atomic, MetricsLog.add

    def full_under_checkpoint(path, content):
        if path.name == "last.pt" and path.exists():
            path.with_name(f".{path.name}.part").write_bytes(content[: len(content) // 2])
            raise OSError(number, os.strerror(number))
        write(path, content)

    def full_under_metrics(log, step, values):
        if step == 5:
            raise OSError(number, os.strerror(number))
        add(log, step, values)

    if where == "last.pt":
        monkeypatch.setattr(checkpoint, "write_atomic", full_under_checkpoint)
    else:
        monkeypatch.setattr(MetricsLog, "add", full_under_metrics)
    with pytest.raises(CheckpointError, match=rf"{os.strerror(number)}.*is kept.*--resume"):
        fit(config, tmp_path / "full")
    assert read_checkpoint(tmp_path / "full" / "last.pt")["step"] == 3
    monkeypatch.undo()
    assert_same_run(fit(config, tmp_path / "full"), fit(config, tmp_path / "whole"))


def test_other_trouble_of_the_disk_is_not_called_a_full_one(tmp_path):
    with pytest.raises(PermissionError), full_disk_explained(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_an_output_that_cannot_be_written_is_told_before_training(config, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(MetricLearning, "loss", None)
    with pytest.raises(ValueError, match=r"nothing can be written to the folder .*--output.folder"):
        fit(config, tmp_path / "file" / "run")


def test_a_folder_of_another_run_is_refused(config, tmp_path):
    config.output.folder = str(tmp_path)
    fit(config, tmp_path)
    with pytest.raises(ValueError, match=r"already holds a run.*--resume"):
        train(config)
    config.trainer.seed = 5
    (tmp_path / "result.json").unlink()
    with pytest.raises(ValueError, match=r"other settings \(trainer.seed 0 there and 5 here\)"):
        fit(config, tmp_path)


def test_a_run_that_failed_before_its_first_checkpoint_leaves_the_folder_free(config, tmp_path):
    config.output.folder = str(tmp_path)
    config.loss.name = "c3"
    with pytest.raises(ValueError, match="there is no loss 'c3'"):
        train(config)
    config.loss.name = "c2"
    assert train(config).model.steps == 6
    assert read_config(tmp_path / "config.yaml").loss.name == "c2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer__monitor": "accuracy"}, r"trainer.monitor must be one of p@1, p@r, map@r"),
        ({"output__ks": [1, 0]}, "every k of R@K must be an integer of at least 1, got 0"),
        ({"trainer__accelerator": "quantum"}, "trainer.accelerator='quantum'.*invalid accelerator"),
        ({"trainer__precision": "fp8"}, "trainer.precision='fp8'.*Precision 'fp8' is invalid"),
        ({"trainer__precision": "16-mixed"}, "float16.*use bf16-mixed"),
        ({"optimiser__multipliers": {"bakbone": 2.0}}, "no parameter is called 'bakbone'"),
        ({"model__pooling": "gapp"}, "no pooling layer 'gapp'"),
        ({"loss__name": "c3"}, "there is no loss 'c3'"),
        ({"loss__miner": "TripletMiner"}, "no miner 'TripletMiner'; did you mean TripletMarginMiner"),
        ({"data__options": {"sede": 1}}, "no option 'sede', did you mean 'seed'"),
        ({"data__transform_options": {"flip": 0}}, "'none' has no options"),
        ({"loss__zsr_options": {"dims": 3}, "loss__zsr": 0.1}, "has no dims"),
        ({"data__sampler": "shuffled", "loss__zsr": 0.1}, "zsr = 0.1 needs two classes in every batch.*balanced"),
        (
            {"model__pooling": "gap", "model__pooling_options": {}, "loss__zsr": 0.1},
            "regularises attributes, which the pooling layer 'gap'",
        ),
    ],
)
def test_what_cannot_work_is_said_before_training(config, tmp_path, changes, message, monkeypatch):
    monkeypatch.setattr(MetricLearning, "loss", lambda *_: pytest.fail("a step was made"))
    with pytest.raises(ValueError, match=message):
        fit(changed(config, **changes), tmp_path)


def test_a_threshold_that_cannot_be_measured_does_not_lose_the_run(config, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise ValueError("a threshold needs pairs of one class")

    monkeypatch.setattr("gspool.training.embed.calibrate_threshold", refused)
    result = fit(config, tmp_path)
    assert result.threshold is None
    assert {"model", "result.json"} <= {path.name for path in tmp_path.iterdir()}
    assert "there is no threshold.json: a threshold needs" in (tmp_path / "log.txt").read_text()


def test_a_second_process_does_not_train_in_the_same_folder(config, tmp_path):
    with only_training(tmp_path / "run", config):
        taken = r"another process is training in .*run; wait .*gspool train --resume .*run"
        with pytest.raises(ValueError, match=taken):
            fit(tiny(seed=1), tmp_path / "run")
        # Not even its settings are written over those of the run that is under way.
        assert read_config(tmp_path / "run" / "config.yaml") == config
    assert fit(config, tmp_path / "run").metrics
    assert not (tmp_path / "run" / ".lock").exists()
