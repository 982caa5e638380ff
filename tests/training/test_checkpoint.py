"""Checkpoints: damage is never loaded, the one before the last is the fallback, and old files are still read."""

from __future__ import annotations

import random
import shutil

import pytest
import torch

from gspool.training import fit
from gspool.training.checkpoint import (
    BEST,
    LAST,
    PREVIOUS,
    CheckpointError,
    read_checkpoint,
    read_newest,
    write_checkpoint,
)
from gspool.training.loop import STATE
from gspool.training.metric_learning import MetricLearning
from training.interrupted_runs import numbers_of


def content(step: int) -> dict[str, object]:
    state = {"weight": torch.randn(20, 30), "steps": torch.tensor(step)}
    return {"step": step, "module": state, "optimizer": {}, "precision": {}, "monitor": {"best_value": 0.1 * step}}


@pytest.mark.parametrize("seed", range(4))
def test_no_damage_is_loaded(tmp_path, seed):
    """300 damaged files a seed: bytes flipped, cut off, overwritten, or added."""
    path = tmp_path / LAST
    write_checkpoint(path, content(7))
    whole, draw = path.read_bytes(), random.Random(seed)
    for _ in range(300):
        damaged = bytearray(whole)
        place = draw.randrange(len(whole))
        kind = draw.choice(["bit", "byte", "zeros", "cut", "added"])
        if kind == "bit":
            damaged[place] ^= 1 << draw.randrange(8)
        elif kind == "byte":
            damaged[place] = (damaged[place] + draw.randrange(1, 256)) % 256
        elif kind == "zeros":
            damaged[place : place + 64] = bytes(len(damaged[place : place + 64]))
        elif kind == "cut":
            del damaged[place:]
        else:
            damaged += draw.randbytes(draw.randrange(1, 200))
        if bytes(damaged) == whole:
            continue
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"last\.pt"):
            read_checkpoint(path)


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\x80\x04K\x01.", b"PK\x03\x04", b"\nsha256 " + b"0" * 64, bytes(1000)], ids=repr
)
def test_any_other_content_is_refused(tmp_path, data):
    (tmp_path / LAST).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"last\.pt.*Delete it to start again"):
        read_newest(tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [({"format": 99}, "format 99"), ([1, 2], "format list"), ({"format": 1}, "has no step, module"), (3, "format int")],
)
def test_other_files_of_torch_are_refused(tmp_path, value, message):
    torch.save(value, tmp_path / LAST)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(tmp_path / LAST, STATE)


def test_a_pickle_that_runs_code_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "written"), "w"))

    torch.save({"format": 1, "step": Evil()}, tmp_path / LAST)
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        read_checkpoint(tmp_path / LAST)
    assert not (tmp_path / "written").exists()


def test_a_file_is_still_one_that_torch_reads(tmp_path):
    write_checkpoint(tmp_path / LAST, content(3))
    assert torch.load(tmp_path / LAST, weights_only=True)["step"] == 3


def test_the_checkpoint_before_the_last_is_kept_and_used_with_a_warning(tmp_path):
    assert read_newest(tmp_path) is None
    for step in (1, 2, 3):
        write_checkpoint(tmp_path / LAST, content(step))
    assert read_newest(tmp_path)["step"] == 3
    assert read_checkpoint(tmp_path / PREVIOUS)["step"] == 2
    with (tmp_path / LAST).open("r+b") as file:
        file.seek(500)
        file.write(b"rot")
    with pytest.warns(UserWarning, match=r"last\.pt is damaged.*going on from .*previous\.pt, step 2"):
        assert read_newest(tmp_path)["step"] == 2
    # The damaged file is out of the way, and does not become the fallback of the next checkpoint.
    assert not (tmp_path / LAST).exists()
    with pytest.warns(UserWarning, match=r"going on from .*previous\.pt"):
        assert read_newest(tmp_path)["step"] == 2
    write_checkpoint(tmp_path / LAST, content(4))
    assert read_checkpoint(tmp_path / PREVIOUS)["step"] == 2
    (tmp_path / PREVIOUS).write_bytes(b"rot")
    (tmp_path / LAST).write_bytes(b"rot")
    with pytest.raises(CheckpointError, match="Delete both"):
        read_newest(tmp_path)


def stopped_run(config, folder):
    """Make a run whose last checkpoint is at step 6 of 9, with the one before at step 3."""
    config.trainer.max_steps, config.trainer.evaluate_every = 9, 3
    whole = fit(config, folder)
    state = {name: value for name, value in read_checkpoint(folder / PREVIOUS).items() if name != "format"}
    assert state["step"] == 6
    (folder / "result.json").unlink()
    (folder / LAST).unlink()
    (folder / PREVIOUS).unlink()
    write_checkpoint(folder / LAST, state)
    return whole


def test_a_run_goes_on_from_the_fallback_to_the_same_numbers(config, tmp_path):
    config.trainer.checkpoint_every = 2
    fit(config, tmp_path / "whole")
    fit(config, tmp_path / "rotten")
    (tmp_path / "rotten" / "result.json").unlink()
    with (tmp_path / "rotten" / LAST).open("r+b") as file:
        file.truncate(1000)
    with pytest.warns(UserWarning, match="going on from"):
        fit(config, tmp_path / "rotten")
    assert numbers_of(tmp_path / "rotten") == numbers_of(tmp_path / "whole")


def test_a_run_of_the_former_format_resumes_to_the_same_numbers(config, tmp_path):
    """Format 1 has neither checksum nor curve nor times, in its checkpoints as in its best model."""
    stopped_run(config, tmp_path / "run")
    expected = fit(config, tmp_path / "whole")
    for name, kept in ((LAST, ("step", "module", "optimizer", "precision", "monitor")), (BEST, ("step", "model"))):
        path = tmp_path / "run" / name
        state = read_checkpoint(path)
        torch.save({"format": 1, **{entry: state[entry] for entry in kept}}, path)
    result = fit(config, tmp_path / "run")
    for name in ("metrics", "validation", "steps"):
        assert getattr(result, name) == getattr(expected, name)
    ours, theirs = numbers_of(tmp_path / "run"), numbers_of(tmp_path / "whole")
    assert (ours["rows"], ours["module"]) == (theirs["rows"], theirs["module"])


def test_damage_to_the_former_format_is_noticed_too(tmp_path):
    state = content(3)
    torch.save({"format": 1, **state}, tmp_path / LAST)
    whole, draw = (tmp_path / LAST).read_bytes(), random.Random(0)
    assert read_checkpoint(tmp_path / LAST)["step"] == 3
    weights = state["module"]["weight"].numpy().tobytes()
    first = whole.index(weights)
    for _ in range(50):
        damaged = bytearray(whole)
        damaged[draw.randrange(first, first + len(weights))] ^= 1 << draw.randrange(8)
        (tmp_path / LAST).write_bytes(damaged)
        with pytest.raises(CheckpointError):
            read_checkpoint(tmp_path / LAST)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_best_model_is_noticed_when_the_run_resumes(config, tmp_path, damage, monkeypatch):
    stopped_run(config, tmp_path)
    if damage == "gone":
        (tmp_path / BEST).unlink()
    else:
        with (tmp_path / BEST).open("r+b") as file:
            file.truncate(900)
    monkeypatch.setattr(MetricLearning, "loss", lambda *_: pytest.fail("a step was made"))
    with pytest.raises(CheckpointError, match=r"best\.pt.*held the best model of this run, from step \d"):
        fit(config, tmp_path)


def test_a_checkpoint_of_another_model_is_refused_in_a_sentence(config, tmp_path):
    stopped_run(config, tmp_path / "run")
    config.model.dim = 16
    stopped_run(config, tmp_path / "other")
    shutil.copy(tmp_path / "other" / LAST, tmp_path / "run" / LAST)
    config.model.dim = 8
    with pytest.raises(CheckpointError, match="does not fit this run"):
        fit(config, tmp_path / "run")
