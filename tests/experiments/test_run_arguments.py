"""What is typed after `gspool reproduce`: what is refused, and what a certificate says about it afterwards."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from gspool import cli
from gspool.experiments import commands, registry
from gspool.experiments.device import available_devices, device_of
from gspool.experiments.experiment import Experiment, RunOptions


@dataclass(frozen=True)
class Knobs:
    """Options of its own.

    Args:
        variants: which ones.
        backbone: a name.
        weights: a file.
        folds: how many.
        train: whether to.
    """

    variants: str = ""
    backbone: str = "keras/resnet50"
    weights: str | None = None
    folds: int = 4
    train: bool = True


PROBE = Experiment("probe", "", "", "", (), lambda _: None, lambda _: "", settings=Knobs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tokns", "there is no experiment 'tokns', did you mean tokens?"),
        ("", "name an experiment, one of toy"),
        ("--device cpu", "name an experiment, one of toy"),
        ("--device cpu tokens", "put the name first: gspool reproduce tokens --device cpu"),
        ("--quick mu --processes 3", "put the name first: gspool reproduce mu --quick --processes 3"),
        ("tokens --seeds a,b", "seeds are whole numbers with commas between, such as 0,1,2, got 'a,b'"),
        ("tokens --seeds 0,0", "seeds are given once each, got 0 more than once"),
        ("tokens --seeds=-1", "seeds are counted from 0, got -1"),
        ("toy --seeds 5", "toy is drawn once, with a fixed seed; leave --seeds 5 out"),
        ("computation --seeds 0,1", "computation is drawn once"),
        ("mu --quick --device banana", "there is no device 'banana' here; available: cpu"),
        ("toy --device banana", "toy computes on the CPU alone, got --device banana"),
        ("tokens --device cuda", "tokens computes on the CPU alone, got --device cuda"),
        ("classification --data folder --download", "put your own pictures into folders under --root"),
    ],
)
def test_wrong_arguments_end_in_a_line_and_status_2(
    words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    find = registry.find
    monkeypatch.setattr(registry, "find", lambda name: replace(find(name), run=lambda _: None))
    assert cli.main(["reproduce", *words.split()]) == 2
    assert message in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_has_the_name_of_an_experiment_is_no_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands.run("reproduce", ["--root", "tokens"]) == 2
    assert "name an experiment" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert commands.run("reproduce", ["--list", "--results", "mu"]) == 0


def test_a_device_is_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(None, "mu") == "cpu"
    with pytest.raises(ValueError, match=r"there is no device 'cuda' here; available: cpu$"):
        device_of("cuda", "mu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert available_devices() == ["cpu", "cuda", "cuda:0", "cuda:1"]
    assert device_of(None, "mu") == "cuda"
    assert device_of(None, "toy", on_gpu=False) == "cpu"
    assert device_of("cuda:1", "mu") == "cuda:1"
    with pytest.raises(ValueError, match="available: cpu, cuda, cuda:0, cuda:1"):
        device_of("cuda:2", "mu")


def test_documents_show_the_bare_command() -> None:
    assert PROBE.command() == "gspool reproduce probe"


def test_a_certificate_names_the_device_and_what_is_not_usual() -> None:
    options = RunOptions(seeds=(1, 2), quick=True, settings=Knobs(folds=2))
    assert PROBE.command(options) == "gspool reproduce probe --seeds 1,2 --device cpu --quick --folds 2"
    usual = RunOptions(device="cuda", settings=Knobs())
    assert PROBE.command(usual) == "gspool reproduce probe --device cuda"


@pytest.mark.parametrize("weights", ["/home/somebody/w.safetensors", "~/w.safetensors", "here/w.safetensors"])
def test_folders_of_a_machine_are_not_recorded(weights: str) -> None:
    settings = Knobs(weights=weights, backbone="timm/resnet50")
    options = RunOptions(Path("/home/somebody/data"), results=Path("/r"), work=Path("/w"), settings=settings)
    assert PROBE.command(options) == (
        "gspool reproduce probe --device cpu --backbone timm/resnet50 --weights w.safetensors"
    )
    elsewhere = PROBE.command(RunOptions(settings=Knobs(variants="/home/somebody/list.txt")))
    assert elsewhere == "gspool reproduce probe --device cpu --variants list.txt"


def test_what_a_certificate_says_can_be_typed_again() -> None:
    settings = Knobs(variants="epsilon 20;learned", weights="w.safetensors", folds=2, train=False)
    options = RunOptions(seeds=(3, 5), settings=settings)
    written = PROBE.command(options)
    assert "--variants 'epsilon 20;learned'" in written
    program, command, name, *words = shlex.split(written)
    assert (program, command, name) == ("gspool", "reproduce", "probe")
    assert commands.options_of(PROBE, commands.reproduce_parser(PROBE).parse_args(words)) == options
