"""`gspool reproduce` and `gspool report`: what a person types, and what they see."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pytest

from gspool import data
from gspool.experiments import commands, registry, reproduction_report, run_status
from gspool.experiments.experiment import NOT_RUN, Headline, Holds, RunOptions, Verdict
from gspool.provenance import write_result
from probe_experiment import register_probe


@dataclass(frozen=True)
class Knobs:
    """Options of its own.

    Args:
        data: which data set.
        folds: how many.
    """

    data: str = "cub"
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
    register_probe(
        monkeypatch,
        run=recorder,
        render=lambda results: "**0.5**" if (results / "probe.json").is_file() else NOT_RUN,
        settings=Knobs,
        why_not_run="no time",
        headlines=lambda value: [Headline("x", "0.6", f"{value['x']}")],
    )
    monkeypatch.chdir(tmp_path)
    return recorder


def test_options_reach_the_experiment(probe: Recorder) -> None:
    words = "probe --root there --seeds 3,5 --device cpu --results out --work w --data sop --folds 2"
    assert commands.run("reproduce", words.split()) == 0
    assert probe.options == [
        RunOptions(
            root=Path("there"),
            seeds=(3, 5),
            device="cpu",
            results=Path("out"),
            images=Path("out/images"),
            work=Path("w"),
            settings=Knobs("sop", 2),
        )
    ]


def test_data_are_fetched_where_that_is_asked_for(
    probe: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[tuple[object, ...]] = []
    monkeypatch.setattr(data, "create", lambda *words, **more: fetched.append((*words, more)))
    assert commands.run("reproduce", ["probe", "--root", "there"]) == 0
    assert commands.run("reproduce", ["probe", "--root", "there", "--download", "--quick"]) == 0
    assert fetched == []
    assert commands.run("reproduce", ["probe", "--root", "there", "--data", "sop", "--download"]) == 0
    assert fetched == [("sop", Path("there"), "train", {"download": True})]
    plain = replace(registry.find("probe"), settings=None, needs=("cifar10", "cifar100"))
    commands.fetch_data(plain, RunOptions())
    assert [words[0] for words in fetched[1:]] == ["cifar10", "cifar100"]
    assert commands.run("reproduce", ["probe", "--data", "folder", "--download"]) == 2
    assert "put your own pictures into folders under --root" in capsys.readouterr().err


def test_results_and_pictures_go_where_the_documents_look_for_them(probe: Recorder) -> None:
    assert commands.run("reproduce", ["probe"]) == 0
    assert probe.options[0].results == Path("results")
    assert probe.options[0].images == Path("docs/images")
    # The same folder by another name.
    assert commands.run("reproduce", ["probe", "--results", str(Path("results").absolute())]) == 0
    assert probe.options[1].images == Path("docs/images")


def test_what_was_written_is_told_at_the_end_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    for name in ("probe_before.json", "probe_damaged.json", "other.json"):
        Path("results", name).write_text("")

    def work(options: RunOptions) -> None:
        write_result(options.results / "probe.json", 0.5, command="gspool reproduce probe", seeds=[])
        Path("results/probe_damaged.json").rename("results/probe.json.damaged")
        Path("results/other.json").write_text("by somebody else")
        options.images.mkdir(parents=True)
        (options.images / "probe.png").write_bytes(b"")
        raise ValueError("a training broke")

    register_probe(monkeypatch, run=work, render=lambda _: "")
    assert commands.run("reproduce", ["probe"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "written: results/probe.json, docs/images/probe.png"
    register_probe(monkeypatch, run=lambda _: None, render=lambda _: "")
    assert commands.run("reproduce", ["probe"]) == 0
    assert "written" not in capsys.readouterr().out


def test_every_experiment_writes_files_that_begin_with_its_name() -> None:
    for name in registry.names():
        assert all(file.startswith(name.replace("-", "_")) for file in registry.find(name).files)


def test_sigterm_ends_an_experiment_wherever_it_is_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    register_probe(monkeypatch, run=lambda _: signal.raise_signal(signal.SIGTERM), render=lambda _: "")
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody minds the signal"))
    try:
        with pytest.raises(SystemExit) as left:
            commands.run("reproduce", ["probe"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 143
    assert "stopped; what is finished is kept" in capsys.readouterr().err


def test_a_quick_run_leaves_the_results_alone(probe: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run("reproduce", ["probe", "--quick"]) == 0
    assert not Path("results").exists()
    assert Path("runs/reproduce/quick/results/probe.json").is_file()
    assert "measures nothing" in capsys.readouterr().out


def test_a_tiny_version_is_not_written_among_measured_results(
    probe: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run("reproduce", ["probe"]) == 0
    kept = Path("results/probe.json").read_bytes()
    assert commands.run("reproduce", ["probe", "--quick", "--results", "results"]) == 2
    told = "--quick measures nothing, and results holds what was measured (probe.json): leave --results out"
    assert told in capsys.readouterr().err
    assert Path("results/probe.json").read_bytes() == kept
    # In a folder of its own it may be made again and again, and its pictures are no part of the documents.
    for _ in range(2):
        assert commands.run("reproduce", ["probe", "--quick", "--results", "own"]) == 0
    Path("results/probe.json").unlink()
    assert commands.run("reproduce", ["probe", "--quick", "--results", "results"]) == 0
    assert [each.images.as_posix() for each in probe.options] == ["docs/images", *["own/images"] * 2, "results/images"]


def test_a_tiny_version_is_never_shown_as_measured(probe: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    Path("results").mkdir()
    assert commands.run("reproduce", ["probe", "--quick", "--results", "results"]) == 0
    assert commands.run("report", []) == 1
    assert "probe.json is of a tiny version (--quick), which measures nothing" in capsys.readouterr().err
    assert not Path("docs/reproduction.md").exists()
    assert run_status.status(registry.find("probe"), Path("results")).text == "not run: no time"
    assert reproduction_report.verdict(registry.find("probe"), Path("results")).because == "not run: no time"


def test_a_damaged_result_is_told_in_the_list(probe: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    Path("results").mkdir()
    Path("results/probe.json").write_text("{")
    assert commands.run("reproduce", ["--list"]) == 0
    assert "not known: probe.json is not JSON" in run_status.status(registry.find("probe"), Path("results")).text
    assert commands.run("reproduce", ["probe"]) == 0
    assert run_status.status(registry.find("probe"), Path("results")).done


def test_names_stay_whole_in_a_narrow_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    reproduction_report.show_list(tmp_path)
    shown = capsys.readouterr().out
    assert all(f"│ {name} " in shown for name in registry.names())
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_options_are_checked_before_data_are_fetched(
    probe: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "create", lambda *words, **more: pytest.fail("too early"))

    def refuse(options: RunOptions) -> None:
        raise ValueError("not like this")

    checked = replace(registry.find("probe"), check=refuse)
    monkeypatch.setattr(registry, "find", lambda name: checked)
    assert commands.run("reproduce", ["probe", "--download"]) == 2
    assert capsys.readouterr().err == "gspool reproduce: not like this\n"


def test_an_unknown_option_is_answered_with_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        commands.run("reproduce", ["toy", "--sed", "1"])
    assert "did you mean --seeds?" in capsys.readouterr().err


def test_the_list_tells_what_was_run_and_what_not(probe: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run("reproduce", ["--list"]) == 0
    assert "not run: no" in " ".join(capsys.readouterr().out.split())
    commands.run("reproduce", ["probe"])
    capsys.readouterr()
    assert commands.run("reproduce", ["--list"]) == 0
    assert "done: 20" in capsys.readouterr().out


def test_part_of_the_results_is_not_done(probe: Recorder, tmp_path: Path) -> None:
    experiment = replace(registry.find("probe"), files=("probe", "second"))
    write_result(tmp_path / "probe.json", 1, command="gspool reproduce probe", seeds=[])
    status = run_status.status(experiment, tmp_path)
    assert not status.done
    assert "missing: second" in status.text
    half = replace(registry.find("probe"), unfinished=lambda results: "3 trainings")
    assert run_status.status(half, tmp_path).text.endswith("missing: 3 trainings")
    assert run_status.status(replace(half, unfinished=lambda results: ""), tmp_path).done


def test_the_report_is_written_once_and_then_up_to_date(probe: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    Path("results").mkdir()
    readme = Path("README.md")
    readme.write_text("before\n<!-- reproduction -->\nold\n<!-- /reproduction -->\nafter\n")
    assert commands.run("report", ["--check"]) == 1
    assert "out of date: docs/reproduction.md, README.md; run gspool report" in capsys.readouterr().err
    assert commands.run("report", []) == 0
    assert NOT_RUN in Path("docs/reproduction.md").read_text()
    assert "| probe | nothing much | | not run: no time | |" in readme.read_text()
    assert commands.run("report", ["--check"]) == 0
    commands.run("reproduce", ["probe"])
    assert commands.run("report", ["--check"]) == 1
    assert commands.run("report", []) == 0
    text = readme.read_text()
    head = "before\n<!-- reproduction -->\nWhat the paper promises, seen here: **cannot tell** probe.\n\n"
    assert text.startswith(f"{head}| experiment |")
    assert text.endswith("<!-- /reproduction -->\nafter\n")
    assert "\nold\n" not in text
    assert "| probe | x | 0.6 | 0.5 | " in text
    assert "**0.5**" in Path("docs/reproduction.md").read_text()


def test_the_page_opens_with_whether_each_promise_was_seen(probe: Recorder, tmp_path: Path) -> None:
    plain = registry.find("probe")
    assert reproduction_report.verdict(plain, tmp_path) == Verdict("cannot tell", "not run: no time")
    write_result(tmp_path / "probe.json", {"x": 0.5}, command="gspool reproduce probe", seeds=[])
    assert reproduction_report.verdict(plain, tmp_path).because == "no verdict"
    seen = replace(plain, verdict=lambda record: Verdict("yes", f"{record['value']['x']}"))
    assert reproduction_report.verdict(seen, tmp_path) == Verdict("yes", "0.5")


def test_what_was_not_run_and_what_nobody_tries_are_listed(
    probe: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert reproduction_report.not_run(tmp_path) == "- probe: not run: no time."
    write_result(tmp_path / "probe.json", {"x": 0.5}, command="gspool reproduce probe", seeds=[])
    assert reproduction_report.not_run(tmp_path) == "Nothing is missing."
    larger = replace(registry.find("probe"), not_attempted="ImageNet")
    monkeypatch.setattr(registry, "find", lambda name: larger)
    assert reproduction_report.not_run(tmp_path) == "- probe, not attempted: ImageNet."


def test_the_command_names_what_a_newcomer_has_to_bring() -> None:
    told = reproduction_report.how_to_run(registry.find("benchmark"))
    assert told.startswith(
        "Run: `gspool reproduce benchmark --root DATA --weights FILE --device cuda --processes 10` ("
    )
    assert "Needs cub in the folder DATA ([data](data.md); `--download` fetches it) and the ImageNet weights" in told


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("components", " --root DATA --weights FILE --device cuda --processes 10"),
        ("mu", " --root DATA --weights FILE --device cuda --processes 10"),
        ("screening", " --root DATA --weights FILE --device cuda --processes 10"),
        # Five at a time is what its cost is about.
        ("classification", " --root DATA --device cuda --processes 5"),
        ("zero-shot", " --root DATA"),
        ("computation", ""),
    ],
)
def test_an_experiment_is_advised_to_be_run_as_its_cost_was_measured(name: str, options: str) -> None:
    told = reproduction_report.how_to_run(registry.find(name))
    assert told.startswith(f"Run: `gspool reproduce {name}{options}` (")


def test_options_of_its_own_are_advised_in_the_place_of_the_usual_ones() -> None:
    own = replace(registry.find("collage"), usual_options="--device cuda --processes 14 --backend triton")
    told = reproduction_report.how_to_run(own)
    assert "`gspool reproduce collage --root DATA --device cuda --processes 14 --backend triton`" in told


@pytest.mark.parametrize("name", registry.names())
def test_every_experiment_judges_its_promise_by_figures(name: str, project: Path) -> None:
    found = reproduction_report.verdict(registry.find(name), project / "results")
    assert found.holds in ("yes", "partly", "no", "cannot tell")
    assert any(letter.isdigit() for letter in found.because)


def test_the_readme_names_every_experiment_once_beside_its_verdict(project: Path) -> None:
    told = reproduction_report.promises_told(project / "results")
    assert told in (project / "README.md").read_text()
    found = {
        name: word
        for part in told.partition("here: ")[2].rstrip(".").split("; ")
        for word, names in [part.removeprefix("**").split("** ")]
        for name in names.split(", ")
    }
    assert found == {
        name: reproduction_report.verdict(registry.find(name), project / "results").holds for name in registry.names()
    }


def test_every_section_opens_with_its_verdict(project: Path) -> None:
    page = (project / "docs" / "reproduction.md").read_text()
    for name in registry.names():
        experiment = registry.find(name)
        opening = page.partition(f"## {reproduction_report.heading(experiment)}\n\n")[2].partition("\n")[0]
        found = reproduction_report.verdict(experiment, project / "results")
        assert opening.endswith(f", says the paper. Seen here: **{found.holds}** ([why](#what-came-out)).")


def test_the_words_of_the_first_table_are_defined() -> None:
    defined = reproduction_report.INTRODUCTION.partition("**Seen here**")[2]
    for word in get_args(Holds):
        assert f"*{word.capitalize()}*: " in defined


def test_verdicts_without_an_interval_are_named_as_exceptions(project: Path) -> None:
    found = {name: reproduction_report.verdict(registry.find(name), project / "results") for name in registry.names()}
    without = {name for name, each in found.items() if "interval" not in each.because}
    exceptions = reproduction_report.INTRODUCTION.partition("Exceptions: ")[2].partition("; ")[2]
    assert without == {name for name in registry.names() if f"{name} " in exceptions.replace("\n", " ")}
    assert "these three without intervals" in exceptions


def test_a_folder_without_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run("report", ["--project", str(tmp_path)]) == 1
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", registry.names())
def test_every_experiment_says_what_it_is_and_renders_empty_handed(name: str, tmp_path: Path) -> None:
    experiment = registry.find(name)
    assert experiment.name == name
    assert experiment.files
    assert NOT_RUN in experiment.render(tmp_path)
    assert not any(word.endswith(".") for word in (experiment.promise, experiment.shows, experiment.cost))


def test_the_page_of_the_project_is_up_to_date(project: Path) -> None:
    reproduction_report.write_report(project, check=True)
