"""Trainings side by side end with the process that began them, in order, whatever it is that ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from experiments.crew_at_work import end_the_process
from gspool.experiments.crew import Broken, Crew, CrewDiedError, TerminatedError, leave_if_told, told_when_stopped
from gspool.experiments.crew import bars as crew_bars
from gspool.experiments.crew import member as crew_member

TESTS = Path(__file__).resolve().parents[1]


@contextmanager
def at_work(what: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Begin the program in a group of its own, as a shell does, and give it with the numbers of its processes."""
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    program = subprocess.Popen(
        [sys.executable, str(TESTS / "experiments" / "crew_at_work.py"), what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    crew: list[int] = []
    try:
        crew += [int(word) for word in read(program, "begun").split()[1:]]
        yield program, crew
    finally:
        for number in (program.pid, *crew):
            if lives(number):
                os.kill(number, signal.SIGKILL)
        program.communicate()


def read(program: subprocess.Popen[str], word: str) -> str:
    assert program.stdout is not None
    line = program.stdout.readline()
    assert line.startswith(word), (line, program.stderr and program.stderr.read())
    return line


def lives(number: int) -> bool:
    """Say whether a process runs; one that has ended and that nobody has asked about does not."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(number)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.parametrize(
    ("number", "group", "status"),
    [(signal.SIGINT, True, 130), (signal.SIGINT, False, 130), (signal.SIGTERM, False, 143)],
    ids=["Ctrl-C", "kill -INT", "kill -TERM"],
)
def test_a_signal_ends_all_processes_in_order_and_keeps_what_is_finished(number: int, group: bool, status: int) -> None:
    with at_work("train") as (program, crew):
        read(program, "kept 0")
        (os.killpg if group else os.kill)(program.pid, number)
        out, told = program.communicate(timeout=60)
        assert program.returncode == status
        assert out == ""
        assert told.split("\n")[-2:] == [
            "stopped; 1 of 4 trainings to be made are kept, the same command goes on with the others",
            "",
        ]
        assert "Traceback" not in told
        assert not any(map(lives, crew))


def test_sigterm_between_two_parts_of_a_study_ends_all_processes_too() -> None:
    with at_work("wait") as (program, crew):
        read(program, "kept")
        read(program, "kept")
        program.terminate()
        _, told = program.communicate(timeout=60)
        assert program.returncode == 143
        assert told == "\nstopped; what is finished is kept, the same command goes on from there\n"
        assert not any(map(lives, crew))


def test_ctrl_c_while_processes_begin_prints_no_tracebacks_of_theirs() -> None:
    with at_work("train") as (program, crew):
        # They import now, which takes longer.
        time.sleep(1.0)
        os.killpg(program.pid, signal.SIGINT)
        _, told = program.communicate(timeout=60)
        assert program.returncode == 130
        assert "stopped; 0 of 4 trainings" in told
        assert "Traceback" not in told
        assert not any(map(lives, crew))


def test_processes_end_by_themselves_where_the_one_that_began_them_was_killed() -> None:
    with at_work("train") as (program, crew):
        read(program, "kept 0")
        program.kill()
        # One of them may still be importing, which takes long beside other work.
        end = time.monotonic() + 60
        while any(map(lives, crew)) and time.monotonic() < end:
            time.sleep(0.1)
        assert not any(map(lives, crew))


def test_a_second_ctrl_c_does_not_wait_for_steps_under_way() -> None:
    with at_work("sleep") as (program, crew):
        program.send_signal(signal.SIGINT)
        # By then it waits for the steps, and says so.
        assert program.stderr is not None
        assert any("Ctrl-C once more" in line for line in iter(program.stderr.readline, ""))
        since = time.monotonic()
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
        assert time.monotonic() - since < crew_member.PATIENCE / 2
        assert program.returncode == 130
        assert not any(map(lives, crew))


def test_a_process_that_dies_is_told_and_the_others_go_on_until_none_is_left() -> None:
    tasks = iter([0, 1, 0])
    found: list[tuple[int, object]] = []
    with Crew(end_the_process, (), 1) as crew, pytest.raises(CrewDiedError, match="run fewer at a time"):
        found.extend(crew.answers(lambda: next(tasks, None)))
    assert found[0] == (0, 0)
    assert isinstance(found[1][1], Broken)
    assert "status -9" in found[1][1].told


def test_only_a_process_that_was_told_to_stop_leaves() -> None:
    leave_if_told()
    crew_member._told.set()
    try:
        with pytest.raises(crew_member.ToldToStopError), crew_bars.steps_under_way("gsp", 0, 1) as made:
            made()
    finally:
        crew_member._told.clear()


@pytest.mark.parametrize(("stop", "status"), [(KeyboardInterrupt, 130), (TerminatedError, 143)])
def test_one_process_alone_tells_what_is_kept_too(
    stop: type[BaseException], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left, told_when_stopped(lambda: 2, of=3):
        raise stop
    assert left.value.code == status
    assert capsys.readouterr().err.strip().startswith("stopped; 2 of 3 trainings")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit), told_when_stopped(lambda: 0, of=1):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_bars_are_shown_to_a_person_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> str:
        with crew_bars.steps_under_way("gsp, seed 0", 0, 3) as made:
            for _ in range(3):
                made("MAP@R 12.30")
        with crew_bars.trainings_under_way(3) as ended:
            ended()
        return capsys.readouterr().out

    assert work() == ""
    monkeypatch.setattr(crew_bars, "on_a_terminal", lambda: True)
    shown = work()
    assert "gsp, seed 0" in shown
    assert "3/3" in shown
    assert "MAP@R 12.30" in shown
    assert "1/3" in shown
    assert "left" in shown
