"""What is typed after `gspool reproduce`: what is refused, and what a certificate says about it afterwards."""

from __future__ import annotations

import errno
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gspool import cli
from gspool.experiments import commands, registry
from gspool.experiments.benchmark.checks import check_backbone
from gspool.experiments.device import available_devices, device_of
from gspool.experiments.experiment import Experiment, RunOptions
from gspool.models import create_backbone
from gspool.terminal.output import check_writable


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
        ("tokens --seeds 4294967296", "seeds go up to 4294967295, got 4294967296"),
        ("mu --quick --seeds 4294968", "seeds of a study go up to 4294967, got 4294968"),
        ("mu --quick --processes 0", "--processes counts trainings at a time, from 1 on, got 0"),
        ("components --quick --seconds=-1", "--seconds is a time to train in, or 0 for no limit, got -1"),
        ("components --quick --seconds .nan", "--seconds is a time to train in, or 0 for no limit, got nan"),
        ("screening --quick --max_steps=-1", "--max_steps counts steps, or is 0 for no limit, got -1"),
        ("screening --quick --folds 1", "the tuning protocol has one fold, 0, got '1'"),
        ("components --data birds", "the paper's benchmarks are cub, cars196, sop, inshop, got 'birds'"),
        ("benchmark --quick --losses c2,pnc", "there is no loss 'pnc'; did you mean pnca"),
        ("benchmark --quick --poolings gap,gps", "there is no pooling layer 'gps'. Did you mean 'gsp'?"),
        ("mu --quick --backbone keras/resnet5", "there is no backbone 'keras/resnet5'; did you mean keras/resnet50"),
        ("mu --quick --backbone timm/resnet5", "has no model 'resnet5'; did you mean timm/resnet50"),
        ("mu", "keras/resnet50 would begin with random weights, and the benchmarks begin with those of ImageNet"),
        ("screening --backbone timm/test_resnet", "timm/test_resnet would begin with random weights"),
        ("components --backbone resnet20 --download", "resnet20 would begin with random weights"),
        ("benchmark --quick --variants learned", "--variants names settings of the search: add --arms search"),
        ("benchmark --quick --arms search --poolings gap", "the search is of GSP alone: leave --poolings out"),
        ("benchmark --quick --losses c2,pnca,c2", "losses are given once each, got c2 more than once in 'c2,pnca,c2'"),
        ("benchmark --quick --poolings gap,gap", "poolings are given once each, got gap more than once"),
        ("benchmark --quick --arms search --variants learned;learned", "variants are given once each, got learned"),
        ("benchmark --quick --poolings all,gap", "--poolings all stands for the layers of Table 2, and alone"),
        ("benchmark --quick --poolings gap,table", "--poolings table stands for those of the pooling table, and alone"),
        ("mu --seeds 0 --train false", "the figures of everything that has been trained: leave --seeds out"),
        ("screening --folds 0 --train false", "the figures of everything that has been trained: leave --folds out"),
        ("benchmark --seeds 0 --losses c2 --train false", "trained: leave --seeds and --losses out"),
        ("benchmark --arms search --variants best --train false", "trained: leave --arms and --variants out"),
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


def test_a_file_of_weights_that_is_missing_or_does_not_fit_is_told_before_any_image_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "mu", "--root", "nowhere", "--backbone", "resnet20", "--weights", "w.safetensors"]
    assert cli.main(words) == 1
    assert "there is no file w.safetensors; give that of the backbone's weights" in capsys.readouterr().err
    save_file({"head": torch.zeros(1)}, "w.safetensors")
    assert cli.main(words) == 2
    assert "w.safetensors" in capsys.readouterr().err
    save_file(create_backbone("resnet20").state_dict(), "w.safetensors")
    check_backbone.cache_clear()
    # Nothing is wrong with what was typed: the data are looked for.
    assert cli.main(words) == 1
    assert "nowhere" in capsys.readouterr().err
    # Figures of what has been trained need no weights.
    assert cli.main(["reproduce", "mu", "--root", "nowhere", "--train", "false"]) == 1
    assert "weights" not in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--results", "--work"])
def test_a_folder_that_cannot_be_written_to_is_told_before_the_work(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    find = registry.find
    monkeypatch.setattr(registry, "find", lambda name: replace(find(name), run=lambda _: pytest.fail("too late")))
    Path("file").write_text("")
    assert cli.main(["reproduce", "toy", option, "file/inside"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("gspool reproduce: nothing can be written to the folder file/inside (")
    assert captured.err.endswith(f"; choose another with {option}, or change its permissions\n")
    assert captured.out == ""
    # What was made to try it is not left behind.
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_the_option_named_is_that_which_chose_the_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    # A tiny version writes its results to the folder of --work.
    for words, option in ((["--work", "file"], "--work"), (["--results", "file"], "--results")):
        assert cli.main(["reproduce", "toy", "--quick", *words]) == 1
        assert f"choose another with {option}," in capsys.readouterr().err


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


def test_trying_a_full_disk_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ValueError, match=r"No space left on device\); choose another with --work, or make room there"):
        check_writable(tmp_path, "--work")
    assert not list(tmp_path.iterdir())
