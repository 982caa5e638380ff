"""`gspool reproduce`: what a person types, what is refused, what is written and printed."""

from __future__ import annotations

import errno
import shlex
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from gspool import cli, data
from gspool.experiments import commands, registry
from gspool.experiments.experiment import Experiment, Record, RunOptions
from gspool.experiments.plots import draw_plots
from gspool.experiments.tables import markdown_table
from gspool.provenance import read_result, write_result
from gspool.terminal.output import check_writable
from probe_experiment import register_probe


@dataclass(frozen=True)
class Knobs:
    """Options of its own.

    Args:
        data: which data set.
        variants: which ones.
        weights: a file.
        folds: how many.
    """

    data: str = "cub"
    variants: str = ""
    weights: str | None = None
    folds: int = 4


class Recorder:
    def __init__(self) -> None:
        self.options: list[RunOptions] = []

    def __call__(self, options: RunOptions) -> None:
        self.options.append(options)
        command = f"gspool reproduce probe{' --quick' * options.quick}"
        write_result(options.results / "probe.json", {"x": 0.5}, command=command, seeds=[])


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    recorder = Recorder()
    register_probe(monkeypatch, run=recorder, settings=Knobs, parallel=True)
    monkeypatch.chdir(tmp_path)
    return recorder


def reproduce(*words: str) -> int:
    return commands.run("reproduce", [part for word in words for part in word.split()])


def test_options_reach_the_experiment(probe: Recorder) -> None:
    words = "probe --root there --seeds 3,5 --device cpu --results out --work w --data sop --folds 2 --processes 3"
    assert reproduce(words, "--ray auto --gpus 0.5 --seconds 60") == 0
    given = {"root": Path("there"), "seeds": (3, 5), "device": "cpu", "results": Path("out"), "work": Path("w")}
    given |= {"processes": 3, "ray": "auto", "gpus": 0.5, "seconds": 60.0, "settings": Knobs("sop", folds=2)}
    assert probe.options == [RunOptions(images=Path("out/images"), **given)]
    executor = probe.options[0].executor
    assert (executor.workers, executor.ray, executor.gpus) == (3, "auto", 0.5)


def test_data_are_downloaded_where_that_is_asked_for_after_options_are_checked(
    probe: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[tuple[object, ...]] = []
    monkeypatch.setattr(data, "create", lambda *words, **more: fetched.append((*words, more)))
    assert reproduce("probe --root there") == 0
    assert reproduce("probe --root there --download --quick") == 0
    assert fetched == []
    assert reproduce("probe --root there --data sop --download") == 0
    assert fetched == [("sop", Path("there"), "train", {"download": True})]
    plain = replace(registry.find("probe"), settings=None, needs=("cifar10", "cifar100"))
    commands.download(plain, RunOptions())
    assert [words[0] for words in fetched[1:]] == ["cifar10", "cifar100"]
    assert reproduce("probe --data folder --download") == 2
    assert "under --root" in capsys.readouterr().err

    def refuse(options: RunOptions) -> None:
        raise ValueError("not like this")

    register_probe(monkeypatch, check=refuse)
    assert reproduce("probe --download") == 2
    assert capsys.readouterr().err == "gspool reproduce: not like this\n"
    assert len(fetched) == 3


def test_results_and_figures_go_where_the_documents_look_for_them(probe: Recorder) -> None:
    # The same folder by another name.
    for words in ("", f"--results {Path('results').absolute()}"):
        assert reproduce("probe", words) == 0
        assert probe.options[-1].results.resolve() == Path("results").resolve()
        assert probe.options[-1].images == Path("docs/images")


def test_the_last_line_names_what_was_written_and_nothing_else(
    probe: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("results").mkdir()
    for name in ("probe_before.json", "probe_damaged.json", "other.json"):
        Path("results", name).write_text("")

    def work(options: RunOptions) -> None:
        write_result(options.results / "probe.json", 0.5, command="gspool reproduce probe", seeds=[])
        Path("results/probe_damaged.json").rename("results/probe.json.damaged")
        Path("results/other.json").write_text("by somebody else")
        options.images.mkdir(parents=True)
        (options.images / "probe.png").write_bytes(b"")
        raise ValueError("a training failed")

    register_probe(monkeypatch, run=work)
    assert reproduce("probe") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "written: results/probe.json, docs/images/probe.png"
    register_probe(monkeypatch)
    assert reproduce("probe") == 0
    assert "written" not in capsys.readouterr().out


@pytest.mark.parametrize("quick", [False, True])
def test_tables_are_drawn_where_the_numbers_count(
    quick: bool, probe: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[object] = []

    def table(record: Record) -> str:
        made.append(record["value"])
        return markdown_table([{"layer": "gsp", "x": record["value"]["x"]}])

    register_probe(monkeypatch, run=probe, tables={"rows": table})
    assert reproduce("probe", "--quick" * quick) == 0
    first, *_ = out = capsys.readouterr().out.splitlines()
    assert made == [{"x": 0.5}]
    assert (any("│ gsp" in line for line in out), any("|---" in line for line in out)) == (not quick, False)
    assert ("numbers mean nothing" in first, any("claim" in line for line in out)) == (quick, not quick)
    # A tiny version leaves the results alone.
    assert (Path("results").exists(), Path("runs/reproduce/quick/results/probe.json").is_file()) == (not quick, quick)


# Studies that nobody has run yet: `tests/experiments` makes their tables from tiny runs.
NOT_MEASURED = {"tuned_cub_resnet50_227_c2", "tuned_cub_resnet50_448_pnca"}


@pytest.mark.parametrize("name", registry.names())
def test_tables_figures_and_headlines_of_the_project_can_be_made(name: str, project: Path, tmp_path: Path) -> None:
    experiment, results = registry.find(name), project / "results"
    assert (experiment.name, experiment.files[0].startswith(name.replace("-", "_"))) == (name, True)
    sources = {table: experiment.source(part) for table, part in experiment.tables.items()}
    assert {source.file for source in sources.values()} <= {*experiment.files}
    for table, source in sources.items():
        if source.file not in NOT_MEASURED:
            assert source.make(read_result(results / f"{source.file}.json")), table
    drawn = draw_plots(experiment, results, tmp_path)
    measured = [part for part in experiment.plots.values() if experiment.source(part).file not in NOT_MEASURED]
    # The published results of zero-shot have no histograms to draw, those of tuned no energy.
    assert len(drawn) == len(measured) - (name in ("zero-shot", "tuned"))
    assert all(path.stat().st_size > 5_000 for path in drawn)
    if experiment.headlines is not None:
        assert experiment.headlines(read_result(results / f"{experiment.files[0]}.json")["value"])
    words = ("done", "partial", *(["not run"] if experiment.files[0] in NOT_MEASURED else []))
    assert registry.status(experiment, results).startswith(words)


def test_sigterm_ends_an_experiment_wherever_it_is_with_one_line(
    probe: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register_probe(monkeypatch, run=lambda _: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody minds the signal"))
    try:
        with pytest.raises(SystemExit) as left:
            reproduce("probe")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 143
    assert capsys.readouterr().err == "\nstopped; finished runs are kept, the same command continues\n"


def test_a_tiny_version_is_not_written_among_measured_results(
    probe: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce("probe") == 0
    kept = Path("results/probe.json").read_bytes()
    assert reproduce("probe --quick --results results") == 2
    assert "results holds measured results (probe.json); remove --results" in capsys.readouterr().err
    assert Path("results/probe.json").read_bytes() == kept
    # In a folder of its own it may be made again and again, and its figures are no part of the documents.
    for _ in range(2):
        assert reproduce("probe --quick --results own") == 0
    Path("results/probe.json").unlink()
    assert reproduce("probe --quick --results results") == 0
    assert [each.images.as_posix() for each in probe.options] == ["docs/images", *["own/images"] * 2, "results/images"]
    assert registry.status(registry.find("probe"), Path("results")) == "not run"


def test_the_list_says_what_has_been_run(
    probe: Recorder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> str:
        capsys.readouterr()
        assert reproduce("--list") == 0
        return " ".join(capsys.readouterr().out.split())

    monkeypatch.setenv("COLUMNS", "200")
    outside = shown()
    assert "nothing much" in outside
    assert "give --results FOLDER" in outside
    Path("results").mkdir()
    assert "not run" in shown()
    Path("results/probe.json").write_text("{")
    assert "unknown: probe.json is not JSON" in shown()
    reproduce("probe")
    assert "done: 20" in shown()
    experiment = registry.find("probe")
    for lacking, said in (
        ({"files": ("probe", "second")}, "second"),
        ({"missing": lambda _: "3 trainings"}, "3 trainings"),
    ):
        status = registry.status(replace(experiment, **lacking), Path("results"))
        assert (status.startswith("partial"), status.rpartition("missing: ")[2]) == (True, said)
    assert registry.status(replace(experiment, missing=lambda _: ""), Path("results")).startswith("done")


def test_names_stay_whole_in_a_narrow_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    commands.show_list(tmp_path)
    shown = capsys.readouterr().out
    assert all(f"│ {name} " in shown for name in registry.names())
    assert max(len(line) for line in shown.splitlines()) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tokns", "there is no experiment 'tokns', did you mean tokens?"),
        ("", "name an experiment before any option, one of toy"),
        ("--device cpu tokens", "name an experiment before any option, one of toy"),
        ("toy --sed 1", "did you mean --seeds?"),
        ("tokens --seeds a,b", "got 'a,b'"),
        ("tokens --seeds 0,0", "got 0 more than once"),
        ("tokens --seeds=-1", "from 0 on with commas between, as 0,1,2; got '-1'"),
        ("tokens --seeds 4294967296", "seeds go up to 4294967295, got 4294967296"),
        ("toy --seeds 5", "the seed of toy is fixed; remove --seeds 5"),
        ("mu --quick --device banana", "there is no device 'banana' here; available: cpu"),
        ("toy --device cuda", "toy runs on the CPU only, got --device cuda"),
        ("mu --quick --processes 0", "--processes is a whole number above 0, got 0"),
        ("mu --quick --seconds=-1", "--seconds is a number of at least 0, got -1"),
        ("mu --quick --seconds .nan", "--seconds is a number of at least 0, got .nan"),
        ("mu --quick --gpus 0.5", "add --ray"),
        ("mu --quick --seeds 4294968", "--seeds go up to 4294967"),
        ("screening --quick --max_steps=-1", "--max_steps is a whole number of at least 0, got -1"),
        ("screening --quick --folds 1", "the tuning protocol has folds 0 to 0, got '1'"),
        ("components --data birds", "--data is one of cub, cars196, sop, inshop, got birds"),
        ("benchmark --quick --losses c2,pnc", "did you mean pnca"),
        ("benchmark --quick --poolings gap,gps", "Did you mean 'gsp'?"),
        ("mu --quick --backbone keras/resnet5", "did you mean keras/resnet50"),
        ("mu", "keras/resnet50 would start from random weights"),
        ("benchmark --quick --variants learnt", "got 'learnt'"),
        ("benchmark --quick --variants search --poolings gap", "add paper to --variants"),
        ("benchmark --quick --losses c2,pnca,c2", "got c2 more than once in 'c2,pnca,c2'"),
        ("benchmark --quick --variants learned;learned", "got learned more than once"),
        ("benchmark --quick --poolings all,gap", "given alone, got 'all,gap'"),
        ("screening --part grid --train false", "leave out --part"),
        ("benchmark --seeds 0 --losses c2 --train false", "leave out --seeds and --losses"),
        ("benchmark --variants best --train false", "leave out --variants"),
    ],
)
def test_wrong_arguments_end_in_a_line_and_status_2(
    words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    find = registry.find
    monkeypatch.setattr(registry, "find", lambda name: replace(find(name), run=lambda _: pytest.fail("too late")))
    try:
        status = cli.main(["reproduce", *words.split()])
    except SystemExit as left:  # what the parser refuses by itself
        status = left.code
    assert status == 2
    assert message in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("option", ["--results", "--work"])
def test_a_folder_that_cannot_be_written_to_is_told_before_the_work(
    option: str, probe: Recorder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("file").write_text("")
    assert reproduce("probe", option, "file/inside") == 1
    captured = capsys.readouterr()
    assert "file/inside" in captured.err
    assert f"choose another with {option}" in captured.err
    assert captured.out == ""
    # A tiny version writes its results to the folder of --work.
    assert reproduce("probe --quick", option, "file") == 1
    assert f"choose another with {option}" in capsys.readouterr().err

    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ValueError, match=r"No space left on device.*--work.*make room"):
        check_writable(tmp_path, "--work")
    # What was made to try it is not left behind, and nothing was run.
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert probe.options == []


def test_the_default_device_is_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert commands.device_of(None, "mu") == "cpu"
    with pytest.raises(ValueError, match=r"there is no device 'cuda' here; available: cpu$"):
        commands.device_of("cuda", "mu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"available: cpu, cuda, cuda:0, cuda:1$"):
        commands.device_of("cuda:2", "mu")
    assert commands.device_of(None, "mu") == "cuda"
    assert commands.device_of(None, "toy", on_gpu=False) == "cpu"
    assert commands.device_of("cuda:1", "mu") == "cuda:1"


PROBE = Experiment("probe", "", "", "", (), lambda _: None, settings=Knobs, parallel=True)


@pytest.mark.parametrize("weights", ["/home/somebody/w.safetensors", "~/w.safetensors", "here/w.safetensors"])
def test_the_recorded_command_names_what_is_not_the_default_and_can_be_typed_again(weights: str) -> None:
    settings = Knobs(variants="epsilon 20;learned", weights=weights, folds=2)
    options = RunOptions(Path("/home/somebody/data"), (3, 5), work=Path("/w"), processes=2, settings=settings)
    words = "gspool reproduce probe --seeds 3,5 --device cpu --processes 2 --variants"
    command = PROBE.command(options)
    assert command == f"{words} 'epsilon 20;learned' --weights w.safetensors --folds 2"
    assert PROBE.command(RunOptions(device="cuda", quick=True, settings=Knobs())).endswith("--device cuda --quick")
    again = commands.options_of(PROBE, commands.reproduce_parser(PROBE).parse_args(shlex.split(command)[3:]))
    # Folders of the machine are left out, and of a file only the name is kept.
    here = {"root": None, "work": RunOptions().work, "settings": replace(settings, weights="w.safetensors")}
    assert again == replace(options, **here)
