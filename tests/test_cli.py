"""The command line: pages of help, exit statuses, one whole run."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import pytest

from gspool import cli
from gspool.data import benchmark
from gspool.terminal.bar import work_bar
from gspool.terminal.status import run_told
from gspool.terminal.table import show_table
from gspool.training import parse_config, read_config
from gspool.training.metric_learning import MetricLearning
from gspool.training.parsing import as_yaml
from training.tiny_run import tiny


@pytest.fixture
def config_file(tmp_path):
    config = tiny()
    config.baseline = "gap"
    config.output.folder = str(tmp_path / "run")
    path = tmp_path / "config.yaml"
    path.write_text(as_yaml(config))
    return path


def test_train_ends_with_a_table_and_evaluate_repeats_it(config_file, tmp_path, capsys):
    assert cli.main(["train", "--config", str(config_file)]) == 0
    shown = capsys.readouterr().out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    baseline = json.loads((tmp_path / "run" / "baseline-gap" / "result.json").read_text())
    for figures in (result, baseline):
        for name in ("map@r", "p@1", "r@8"):
            assert f"{100 * figures['metrics'][name]:.2f}" in shown
    assert "gsp" in shown
    assert "gap" in shown
    figures = tmp_path / "figures.json"
    arguments = ["evaluate", str(tmp_path / "run"), "--device", "cpu", "--progress", "false", "--json", str(figures)]
    assert cli.main(arguments) == 0
    measured = json.loads(figures.read_text())
    assert measured["map@r"] == pytest.approx(result["metrics"]["map@r"])
    assert f"{100 * measured['map@r']:.2f}" in capsys.readouterr().out


@pytest.mark.parametrize(("warm_start", "told"), [("24", 0), ("1024", 1)])
def test_train_warns_of_gsp_that_has_only_averaged(config_file, warm_start, told, capsys):
    late = ["--trainer.monitor_split", "none", "--model.pooling_options.warm_start", warm_start]
    assert cli.main(["train", "--config", str(config_file), *late]) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "pools as average pooling" in line]
    assert len(warned) == told
    assert all("lower --model.pooling_options.warm_start" in line and "--trainer.max_steps" in line for line in warned)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_is_a_page_with_examples(command, capsys):
    with pytest.raises(SystemExit) as status:
        cli.main([command, "--help"])
    assert status.value.code == 0
    page = capsys.readouterr().out
    assert page.count(f"    gspool {command}") >= 2
    assert "options:" in page


def test_help_of_explain_requires_no_image(capsys):
    with pytest.raises(SystemExit):
        cli.main(["explain", "--help"])
    _, positional = capsys.readouterr().out.split("positional arguments:")
    (image,) = (line for line in positional.splitlines() if line.strip().startswith("IMAGE"))
    assert "none with --prototypes" in image
    assert "(required)" not in positional.partition("IMAGE")[2].partition("options:")[0]


@pytest.mark.parametrize("words", [["tokns"], ["tokens", "--seeds", "a"], ["--device", "cpu", "tokens"]])
def test_arguments_that_cannot_be_meant_give_status_2(words, capsys):
    assert cli.main(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gspool reproduce: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--output.folder", "FILE/run"],
        ["evaluate", "no/such/run", "--json", "FILE/figures.json"],
        ["embed", "no/such/model", "pictures", "--out", "FILE/vectors.npz"],
        ["embed", "no/such/model", "pictures", "--out", "FILE/vectors.lance"],
        ["search", "no/such/model", "a.png", "--index", "none.lance", "--json", "FILE/answers.json"],
        ["search", "no/such/model", "a.png", "--index", "none.lance", "--picture", "FILE/answers.png"],
        ["explain", "no/such/model", "a.png", "--out", "FILE/why.png"],
        ["explain", "no/such/model", "a.png", "--json", "FILE/why.json"],
        ["export", "no/such/model", "--onnx", "FILE/model.onnx"],
        ["export", "no/such/model", "--torch", "FILE/model.pt2"],
        ["export", "no/such/model", "--folder", "FILE/share"],
        ["bench", "--out", "FILE/costs.json"],
    ],
)
def test_a_place_that_cannot_be_written_is_told_before_anything_is_loaded(words, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert cli.main([word.replace("FILE", str(tmp_path / "file")) for word in words]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"gspool {words[0]}: nothing can be written to the folder {tmp_path / 'file'}")
    assert f"choose another with {words[-2]}" in error
    assert error.count("\n") == 1


def test_what_the_operating_system_refuses_ends_in_a_line(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert cli.main(["reproduce", "tokens", "--quick", "--work", str(tmp_path / "file" / "work")]) == 1
    error = capsys.readouterr().err
    assert "Not a directory" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("reproduce benchmark --protocol foo", "--protocol is one of fair, conventional, got foo"),
        ("reproduce benchmark --arms foo", "--arms is one of paper, search, both, or null, got foo"),
        ("reproduce benchmark --processes 1.5", "--processes is a whole number above 0, got 1.5"),
        ("reproduce benchmark --seconds nan", "--seconds is a number of at least 0, got nan"),
        ("reproduce mu --train maybe", "--train is true or false, got maybe"),
        ("train --trainer.patience soon", "--trainer.patience is a whole number, or null, got soon"),
        ("train --optimiser.betas 3", "--optimiser.betas is [a number, a number], got 3"),
        ("train --data.options 3", "--data.options is names with values, such as {name: value}, got 3"),
        ("search RUN a.png --k many", "--k is a whole number above 0, got many"),
    ],
)
def test_a_value_of_another_kind_is_told_in_plain_words(words, line, capsys):
    with pytest.raises(SystemExit) as status:
        cli.main(words.split())
    assert status.value.code == 2
    # An experiment has options that only its own page of help lists.
    named = "gspool " + " ".join(words.split()[: 2 if words.startswith("reproduce") else 1])
    assert capsys.readouterr().err == f"{named}: {line}\n{named} --help lists every option.\n"


def test_without_a_command_the_commands_are_listed(capsys):
    assert cli.main([]) == 0
    assert cli.main(["--help"]) == 0
    page = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert f"gspool {command}" in page


def test_a_wrong_command_is_answered_with_the_right_one(capsys):
    assert cli.main(["trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.pooling", "gap", "--model.pooling_options.mu", "0.1"], "gap has no option 'mu'"),
        (["--preset", "paper/cub"], "bninception would begin with random weights"),
        (["--preset", "paper/cub"], "--model.backbone_options.weights FILE"),
        (["--preset", "paper/collage"], "resnet20 would begin with random weights"),
        (["--model.backbone", "timm/resnet18"], "--model.backbone_options.pretrained true"),
        (["--model.backbone", "keras/resnet50"], "--from_scratch"),
        (["--from_scratch", "true", "--model.backbone_options.weights", "a.pth"], "leave one of them out"),
        (["--trainer.monitor", "accuracy"], "trainer.monitor must be one of p@1"),
        (["--model.pooling_options.prototypess", "3"], "gsp has no option 'prototypess'"),
        (["--download"], "glyphs is none of them"),
    ],
)
def test_a_training_that_cannot_be_meant_ends_in_status_2(words, message, capsys, tmp_path):
    small = [] if "--preset" in words else ["--data.options.images_per_class", "1"]
    assert cli.main(["train", "--output.folder", str(tmp_path / "run"), *small, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_options_of_the_preset_can_be_left_out_before_others_are_written():
    layer = ["--model.pooling", "gemean", "--model.pooling_options", "{}", "--model.pooling_options.p", "4"]
    assert parse_config(layer)[0].model.pooling_options == {"p": 4}


@pytest.mark.parametrize("command", [["train", "--preset", "paper/cub", "--from_scratch", "true"], ["evaluate", "RUN"]])
def test_a_data_set_is_fetched_before_the_work_and_a_missing_line_is_told(command, capsys, tmp_path, monkeypatch):
    asked = []

    def offline(archive, folder):
        asked.append((archive.file_name, folder))
        raise ConnectionError("the address could not be fetched")

    monkeypatch.setattr(benchmark, "fetch", offline)
    (tmp_path / "config.yaml").write_text("data: {name: cub}\n")
    words = [str(tmp_path) if word == "RUN" else word for word in command]
    # Nobody wants to wait for a download to hear this.
    blocked = ["--output.folder", str(tmp_path / "config.yaml" / "run")]
    if command[0] == "train":
        assert cli.main([*words, *blocked, "--data.root", str(tmp_path), "--download"]) == 1
        assert "nothing can be written" in capsys.readouterr().err
        words += ["--output.folder", str(tmp_path / "run")]
    assert cli.main([*words, "--data.root", str(tmp_path), "--download"]) == 1
    assert asked == [("CUB_200_2011.tgz", tmp_path)]
    assert capsys.readouterr().err == f"gspool {command[0]}: the address could not be fetched\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "/nowhere/at/all"], "there is no folder /nowhere/at/all"),
        (["train", "--resume", "/nowhere/at/all"], "expected the config.yaml of a run"),
        (["train", "--preset", "folder", "--data.root", "/nowhere/at/all"], "/nowhere/at/all"),
        (["train", "--data.options.seed", str(2**80)], "a seed is a whole number from 0 to 4294967295, got 12089258"),
        (["train", "--data.options.seed", "-1"], "a seed is a whole number from 0 to 4294967295, got -1"),
    ],
)
def test_mistakes_end_in_a_line_and_status_1(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "folder" in arguments:
        arguments = [*arguments, "--model.backbone", "small_cnn", "--model.backbone_options", "{}"]
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_an_interruption_says_how_to_go_on(config_file, capsys, monkeypatch, tmp_path):
    loss = MetricLearning.loss

    def interrupted(task, batch, step):
        os.kill(os.getpid(), signal.SIGINT)
        return loss(task, batch, step)

    monkeypatch.setattr(MetricLearning, "loss", interrupted)
    assert cli.main(["train", "--config", str(config_file)]) == 130
    assert f"gspool train --resume {tmp_path / 'run'}" in capsys.readouterr().err
    monkeypatch.undo()
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert read_config(tmp_path / "run" / "config.yaml").baseline == "gap"


SIGNALS = pytest.mark.parametrize(
    ("number", "status", "line"),
    [(signal.SIGINT, 130, "\ninterrupted\n"), (signal.SIGTERM, 143, "\nterminated\n")],
)


def signalled(code: str, number: signal.Signals) -> tuple[int, str]:
    """Run a program, send it a signal when it has printed "ready", and return its status and its errors."""
    words = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    program = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(number)
        _, errors = program.communicate(timeout=60)
    finally:
        program.kill()
    return program.returncode, errors


@SIGNALS
def test_a_signal_while_libraries_are_imported_ends_in_a_line(tmp_path, number, status, line):
    # In the place of torch stands a module that takes long, and that mistakes an exception for something else.
    (tmp_path / "torch.py").write_text(
        "import time\nprint('ready', flush=True)\ntry:\n    time.sleep(60)\nexcept BaseException:\n    pass\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from gspool.cli import main; sys.exit(main(['train']))"
    assert signalled(code, number) == (status, line)


COMMAND = """
import multiprocessing, os, signal, sys, time, types
from gspool import cli
from gspool.terminal.status import run_told
def work(arguments):
    fork = multiprocessing.get_context("fork")
    begun = fork.Event()
    worker = fork.Process(target=lambda: (begun.set(), time.sleep(60)))
    worker.start()
    begun.wait()
    worker.terminate()
    worker.join()
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up, worker", worker.exitcode, file=sys.stderr)
module = types.ModuleType("slow")
module.run = lambda command, rest: run_told("gspool train", work, rest)
sys.modules["slow"] = module
cli.COMMANDS["train"] = cli.Command("slow", "", "")
sys.exit(cli.main(["train"]))
"""


@SIGNALS
def test_a_signal_while_a_command_runs_cleans_up_and_ends_in_a_line(number, status, line):
    # The worker, which inherits the handler, ends like any process that has none: without a word.
    ended, errors = signalled(COMMAND, number)
    assert ended == status
    assert sorted(errors.split("\n")) == sorted(["cleaned up, worker -15", *line.split("\n")])


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("lines", [1, 10_000])
def test_output_that_nobody_reads_ends_the_command_without_a_word(lines, unbuffered):
    """As after ``| head -1``, whether the lines are many or still wait in a buffer when the command is done."""
    code = "import sys; from gspool.terminal.status import run_told; "
    code += f"sys.exit(run_told('gspool search', lambda _: [print('a line') for _ in range({lines})], []))"
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, env=environment, text=True, check=False, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_another_pipe_that_breaks_is_told_and_a_command_needs_no_output(monkeypatch, capsys):
    def broken(_):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    assert run_told("gspool embed", broken, []) == 1
    assert capsys.readouterr().err == "gspool embed: Broken pipe\n"
    monkeypatch.setattr(sys, "stdout", None)
    assert run_told("gspool embed", lambda _: None, []) == 0
    assert run_told("gspool embed", broken, []) == 1


def test_a_signal_that_somebody_handles_is_theirs():
    code = COMMAND.replace("def work", "signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))\ndef work")
    assert signalled(code, signal.SIGTERM)[0] == 7


def test_a_missing_lightning_is_named(monkeypatch):
    from gspool.training import processes

    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(ImportError, match=r"training needs Lightning.*gspool\[train\]"):
        processes.import_fabric()


def test_warnings_to_users_are_told_without_the_source(monkeypatch, capsys):
    def run(command, rest):
        # What Python would write: pytest collects warnings before they are written.
        for kind, message in ((UserWarning, "3 images are left out"), (FutureWarning, "soon gone")):
            print(warnings.formatwarning(message, kind, "sets.py", 49), end="")
        return 0

    monkeypatch.setitem(sys.modules, "warned", SimpleNamespace(run=run))
    monkeypatch.setitem(cli.COMMANDS, "train", cli.Command("warned", "", ""))
    assert cli.main(["train"]) == 0
    first, rest = capsys.readouterr().out.split("\n", 1)
    assert first == "warning: 3 images are left out"
    assert "FutureWarning: soon gone" in rest


def test_the_rate_of_a_finished_task_counts_the_wait_for_its_first_report(capsys):
    with work_bar("tokens", 0, 10, shown=True, unit="pictures") as bar:
        time.sleep(0.2)
        bar.advance(steps=4)
        bar.advance(steps=6)
    rate = re.search(r"([\d.,]+)\s+pictures/s", capsys.readouterr().out)
    assert rate is not None
    assert float(rate[1].replace(",", "")) < 10 / 0.2


def test_a_table_in_a_narrow_terminal_breaks_words_and_no_numbers(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    names = ("p@1", "p@r", "map@r", "r@1", "r@2", "r@4", "r@8")
    show_table("test", {"gsp+cls, nothing learned": dict.fromkeys(names, 0.98333)})
    shown = capsys.readouterr().out
    assert shown.count("98.33") == len(names)
    assert all(word in shown for word in ("gsp+cls,", "nothing", "learned"))
