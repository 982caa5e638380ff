"""Tasks in processes and on Ray: all of them are done, failures are told, and nothing is left behind."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from gspool.executor import Executor, Failure, run_tasks
from gspool.executor.processes import PATIENCE
from gspool.executor.worker import TRIES

TESTS = Path(__file__).resolve().parent


def made(worker):
    """Return a worker that needs no making."""
    return worker


def square(number):
    return number**2


squares = partial(made, square)


def refuses_odd(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


def waits_for_others(marks, number):
    """Finish task 0 when tasks 1 to 3 have finished."""
    (marks / f"{number}").touch()
    end = time.monotonic() + 60
    while number == 0 and len([*marks.iterdir()]) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    return number


def pid(number):
    return os.getpid()


def broken_worker():
    raise FileNotFoundError("there is no data set")


def kill_once(mark, number):
    """Kill this process in the task 0 of the first process that does it."""
    if number == 0 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def kill_always(number):
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def dies_while_it_answers(number):
    """Return far more than a pipe holds, and die while it is written."""
    if number == 0:
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        return b"x" * 200_000_000
    return b""


def make_sum():
    import torch

    return lambda tensor: (torch.get_num_threads(), multiprocessing.get_start_method(), float(tensor.sum()))


def unpicklable(number):
    return (lambda: number) if number else number


@pytest.mark.parametrize("workers", [1, 2])
def test_every_task_is_done_once(workers):
    found = list(run_tasks(squares, range(7), Executor(workers)))
    assert sorted(found) == [(number, number**2) for number in range(7)]


@pytest.mark.parametrize("ordered", [False, True])
def test_results_come_as_they_are_ready_or_in_order(ordered, tmp_path):
    worker = partial(made, partial(waits_for_others, tmp_path))
    found = [task for task, _ in run_tasks(worker, range(4), Executor(2), ordered=ordered)]
    assert sorted(found) == [0, 1, 2, 3]
    assert ordered == (found == [0, 1, 2, 3])


def test_tasks_are_read_as_workers_become_free_and_leaving_early_ends_the_processes():
    taken = []

    def tasks():
        for number in range(100):
            taken.append(number)
            yield number

    with closing(run_tasks(partial(made, pid), tasks(), Executor(2))) as results:
        pids = {next(results)[1]}
        assert len(taken) <= 5
        pids |= {next(results)[1], next(results)[1]}
    assert not any(map(lives, pids))


def test_several_processes_have_one_thread_each_start_processes_as_this_one_and_take_tensors():
    import torch

    tensors = [torch.ones(3), torch.ones(5)]
    found = [result for _, result in run_tasks(make_sum, tensors, Executor(2), ordered=True)]
    method = multiprocessing.get_start_method()
    assert found == [(1, method, 3.0), (1, method, 5.0)]


def test_no_task_starts_no_process():
    assert list(run_tasks(broken_worker, [], Executor(2))) == []


@pytest.mark.parametrize(
    ("make_worker", "message", "failing"),
    [
        (partial(made, refuses_odd), "{} is odd", (1, 3)),
        (broken_worker, "there is no data set", (0, 1, 2, 3)),
        (partial(made, unpicklable), "pickle", (1, 2, 3)),
    ],
)
def test_what_a_task_raises_is_its_result_and_the_others_go_on(make_worker, message, failing):
    found = dict(run_tasks(make_worker, range(4), Executor(2)))
    assert {number for number, result in found.items() if isinstance(result, Failure)} == {*failing}
    assert all(message.format(number) in found[number].message for number in failing)


def test_in_this_process_it_is_raised_and_a_worker_that_cannot_be_sent_always():
    with pytest.raises(ValueError, match="1 is odd"):
        list(run_tasks(partial(made, refuses_odd), range(4)))
    with pytest.raises((AttributeError, TypeError), match=r"pickle|local"):
        list(run_tasks(lambda: square, range(3), Executor(2)))


def test_the_task_of_a_killed_process_is_done_again(tmp_path, capfd):
    found = dict(run_tasks(partial(made, partial(kill_once, tmp_path / "killed")), range(4), Executor(2)))
    assert found == {number: number for number in range(4)}
    assert "exit code -9" in capfd.readouterr().err


@pytest.mark.parametrize("ordered", [False, True])
def test_a_task_that_kills_its_process_fails_alone(ordered):
    found = dict(run_tasks(partial(made, kill_always), range(5), Executor(3), ordered=ordered))
    assert f"died {TRIES} times" in found.pop(0).message
    assert found == {number: number for number in range(1, 5)}


def test_a_process_that_dies_in_the_middle_of_its_answer_blocks_nobody():
    found = dict(run_tasks(partial(made, dies_while_it_answers), range(4), Executor(2)))
    # Where memory is fast the answer is through before the kill.
    assert isinstance(found[0], Failure | bytes)
    assert all(found[number] == b"" for number in range(1, 4))


def test_tasks_run_outside_the_main_thread_too():
    found = []
    thread = threading.Thread(target=lambda: found.extend(run_tasks(squares, range(3), Executor(2), ordered=True)))
    thread.start()
    thread.join(60)
    assert found == [(0, 0), (1, 1), (2, 4)]


@contextmanager
def at_work(*words):
    """Start the program in a process group of its own, as a shell does; yield it and the pids of its workers so far."""
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    program = subprocess.Popen(
        [sys.executable, str(TESTS / "executor_at_work.py"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    pids = set()
    try:
        yield program, pids
    finally:
        for number in (program.pid, *pids):
            if lives(number):
                os.kill(number, signal.SIGKILL)
        program.communicate()


def read_until(program, pids, word):
    """Read what the program prints until a line starts with a word; remember the pids of its processes."""
    for line in program.stdout:
        if line.startswith("begun"):
            pids.add(int(line.split()[1]))
        if line.startswith(word):
            pids |= children_of(program.pid)
            return
    pytest.fail(f"no {word!r}: {program.stderr.read()}")


def ps(*words):
    return subprocess.run(["ps", "-o", *words], capture_output=True, text=True, check=False).stdout


def children_of(pid):
    return {int(word) for word in ps("pid=", "--ppid", str(pid)).split()}


def lives(pid):
    """Whether a process runs; one that has ended and that nobody has asked about does not."""
    return ps("stat=", "-p", str(pid)).strip()[:1] not in ("", "Z")


def gone(pids):
    end = time.monotonic() + 60
    while any(map(lives, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(lives, pids))


@pytest.mark.parametrize(
    ("number", "group", "status"),
    [
        (signal.SIGINT, True, 130),
        (signal.SIGINT, False, 130),
        (signal.SIGTERM, False, 143),
        (signal.SIGTERM, True, 143),
    ],
    ids=["Ctrl-C", "kill -INT", "kill -TERM", "timeout"],
)
def test_a_signal_ends_all_processes_and_keeps_what_is_finished(number, group, status):
    with at_work("100") as (program, pids):
        read_until(program, pids, "kept 0")
        (os.killpg if group else os.kill)(program.pid, number)
        _, told = program.communicate(timeout=60)
        assert program.returncode == status
        assert told.endswith("stopped; 1 kept\n")
        assert "Traceback" not in told
        assert gone(pids)


@pytest.mark.parametrize("attempt", range(6))
def test_a_signal_at_any_moment_ends_everything_in_time(attempt):
    """While processes start and import, while tasks begin and end: there is no moment at which it waits for ever."""
    chance = random.Random(attempt)
    number, status = chance.choice([(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    with at_work("0.05") as (program, pids):
        read_until(program, pids, "ready")
        # From the first start of a process to the end of the last task.
        time.sleep(chance.uniform(0.0, 1.2))
        pids |= children_of(program.pid)
        with suppress(ProcessLookupError):
            chance.choice([os.kill, os.killpg])(program.pid, number)
        out, told = program.communicate(timeout=60)
        # After the last task the program is on its way out, and dies of signals as any other.
        assert program.returncode == status or "kept 5" in out
        assert "Traceback" not in told or "kept 5" in out
        assert gone(pids)


def test_a_signal_that_does_not_wake_the_main_thread_is_heard():
    with at_work("100", "elsewhere") as (program, pids):
        read_until(program, pids, "kept 0")
        time.sleep(0.5)  # by now it waits for a result
        program.send_signal(signal.SIGINT)
        _, told = program.communicate(timeout=60)
        assert told.endswith("stopped; 1 kept\n")
        assert gone(pids)


def test_a_second_ctrl_c_kills_tasks_that_do_not_stop():
    with at_work("100", "stubborn") as (program, pids):
        read_until(program, pids, "kept 0")
        time.sleep(0.5)
        program.send_signal(signal.SIGINT)
        assert "Ctrl-C again" in program.stderr.readline()
        program.send_signal(signal.SIGINT)
        start = time.monotonic()
        _, told = program.communicate(timeout=60)
        assert time.monotonic() - start < PATIENCE
        assert program.returncode == 130
        assert "Traceback" not in told
        assert gone(pids)


def test_processes_end_when_their_parent_is_killed():
    with at_work("100") as (program, pids):
        read_until(program, pids, "kept 0")
        program.kill()
        assert gone(pids)


def test_a_grid_on_ray_finds_what_one_process_finds(tmp_path):
    """A real cluster of this machine: fractional cores, failures, a killed worker, the order of tasks."""
    executor = Executor(workers=3, ray="local", cpus=0.5)
    worker = partial(made, partial(mixed, tmp_path / "killed"))
    tasks, results = zip(*run_tasks(worker, range(8), executor, ordered=True), strict=True)
    assert tasks == (*range(8),)
    assert "three" in results[3].message
    assert (*results[:3], *results[4:]) == (0, 1, 4, 16, 25, 36, 49)
    assert (tmp_path / "killed").exists()


def mixed(mark, number):
    if number == 3:
        raise ValueError("three")
    if number == 5:
        kill_once(mark, 0)
    return number**2


def test_an_address_without_a_cluster_is_told(monkeypatch):
    with pytest.raises(ValueError, match=r"no Ray cluster at '127.0.0.1:1'"):
        list(run_tasks(squares, [1], Executor(ray="127.0.0.1:1")))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install"):
        list(run_tasks(squares, [1], Executor(ray="local")))
