"""`gspool bench` as it is typed: real runs at tiny shapes, JSON, mistakes."""

from __future__ import annotations

import json
import sys

import pytest

from gspool import cli
from gspool.provenance import read_result

TINY = ["--batch", "2", "--channels", "16", "--size", "3", "--repeats", "2", "--device", "cpu"]


def test_a_run_shows_a_table_and_closes_with_the_cost_of_the_swap(capsys):
    assert cli.main(["bench", *TINY]) == 0
    shown = capsys.readouterr()
    setting, _, head, *rest = shown.out.splitlines()
    assert setting.startswith("2 images, 16 channels, map 3x3; float32, forward and backward; ")
    assert head.split()[:3] == ["layer", "median", "ms"]
    assert [line.split()[0] for line in rest[:4]] == ["gap", "gmp", "gemean", "gsp"]
    assert rest[-1].startswith("gsp instead of gap, map 3x3: ")
    # No terminal, no progress.
    assert shown.err == ""


def test_numbers_are_written_with_their_provenance(tmp_path, capsys):
    file = tmp_path / "new" / "bench.json"
    words = ["bench", *TINY, "--layers", "gsp:prototypes=4", "--forward-only", "--threads", "1", "--out", str(file)]
    assert cli.main(words) == 0
    record = read_result(file)
    assert record["command"] == f"gspool {' '.join(words)}"
    assert record["device"].endswith("1 thread")
    assert record["seeds"] == [0]
    assert record["value"]["settings"]["backward"] is False
    gap, gsp = record["value"]["rows"]
    assert gap["times_gap"] == 1.0
    assert gsp["layer"] == "gsp:prototypes=4"
    assert gsp["backend"] == "torch"
    assert gsp["parameters"] == 4 * 16
    assert gsp["repeats"] == 2
    assert gsp["low_ms"] <= gsp["median_ms"] <= gsp["high_ms"]
    assert gsp["times_gap"] == pytest.approx(gsp["median_ms"] / gap["median_ms"])
    assert gsp["images_per_second"] == pytest.approx(2000 / gsp["median_ms"])
    assert gsp["peak_bytes"] is None
    assert record["value"]["closing"] in capsys.readouterr().out


def test_a_network_is_in_the_table_and_in_the_numbers(tmp_path, capsys):
    file = tmp_path / "bench.json"
    words = ["--layers", "gsp", "--model", "resnet20", "--batch", "2", "--repeats", "1", "--device", "cpu"]
    assert cli.main(["bench", *words, "--out", str(file)]) == 0
    out = capsys.readouterr().out
    assert "64 channels, map 8x8 after resnet20 with random weights" in out
    assert "network ms" in out
    gap, gsp = json.loads(file.read_text())["value"]["rows"]
    assert gsp["share_percent"] == pytest.approx(100 * gsp["median_ms"] / gsp["network_median_ms"])
    assert gsp["network_times_gap"] == pytest.approx(gsp["network_median_ms"] / gap["network_median_ms"])


def test_progress_goes_to_a_terminal_and_not_into_the_answer(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert cli.main(["bench", *TINY, "--layers", "gap"]) == 0
    shown = capsys.readouterr()
    assert "timing layers at 3x3: 50 %" in shown.err
    assert "timing" not in shown.out
    assert "\r" not in shown.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "gps"], "there is no pooling layer 'gps'. Did you mean 'gsp'?"),
        (["--layers", "gsp:mue=1"], "gsp has no option 'mue'"),
        (["--layers", "gemean:p=high"], "p of gemean is a number such as 3.0, got 'high'"),
        ([*TINY, "--layers", "gsp:mu=2"], "mu is the fraction of mass kept and must lie in (0, 1], got 2"),
        (["--layers", "gmp", "--backend", "triton"], "none of gap, gmp has one"),
        (["--out", "numbers.csv"], "written as a JSON file: name it NAME.json, got numbers.csv"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--batch", "0"], "batch must be at least 1, got 0"),
        (["--repeats", "0"], "repeats must be at least 1, got 0"),
        (["--seconds", "0"], "seconds is how long each layer is timed and must be positive, got 0"),
        (["--pixels", "64"], "pixels is the size of the images of a model: name one"),
    ],
)
def test_what_cannot_be_meant_ends_in_a_line_and_status_2(words, message, capsys):
    assert cli.main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gspool bench: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sizes", "7"], "did you mean --size?"),
        (["--dtype", "int8"], "invalid choice: 'int8'"),
        (["--size", "seven"], "a size is a number, 7, or HEIGHTxWIDTH, 16x8, got 'seven'"),
        (["--seconds", "1", "--repeats", "1"], "not allowed with argument"),
        (["--backward", "--forward-only"], "not allowed with argument"),
        (["--model", "resnet20", "--size", "7"], "--channels and --size are set by the model"),
    ],
)
def test_options_that_cannot_be_read_end_in_status_2_without_a_page_of_usage(words, message, capsys):
    with pytest.raises(SystemExit) as status:
        cli.main(["bench", *words])
    assert status.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") <= 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
        (["--backend", "triton"], "backend='triton' cannot run here"),
    ],
)
def test_what_this_machine_does_not_have_ends_in_a_line_and_status_1(words, message, capsys):
    assert cli.main(["bench", *TINY, *words]) == 1
    assert message in capsys.readouterr().err
