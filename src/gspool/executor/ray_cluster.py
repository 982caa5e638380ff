"""Tasks on a Ray cluster, with fractional GPUs and cores."""

from __future__ import annotations

import functools
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Generator, Iterable
from typing import Any

from gspool.executor.worker import AHEAD, TRIES, Executor, Failure, attempt
from gspool.terminal.signals import noted_signals

LOCAL = "local"
_END = object()


class _Actor:
    """A worker on Ray. It gets the function that makes it with every task: Ray may have started it again."""

    def __init__(self) -> None:
        self.make_once = functools.cache(lambda reference: import_ray().get(reference)())

    def do(self, make_worker: list[Any], task: Any) -> Any:
        return attempt(functools.partial(self.make_once, make_worker[0]), task)


def run_on_ray(
    make_worker: Callable[[], Any], tasks: Iterable[Any], executor: Executor, *, ordered: bool
) -> Generator[tuple[Any, Any], None, None]:
    """Yield every task with its result; see `gspool.executor.run_tasks`."""
    ray = import_ray()
    left = iter(tasks)
    task = next(left, _END)
    if task is _END:
        return  # a cluster takes seconds to start, or to wait for
    _join(ray, executor.ray or LOCAL)
    # Signals are noted: an exception in the middle of Ray could leave it half alive.
    with noted_signals(lambda: None) as noted:
        try:
            resources = ray.cluster_resources()
            all_gpus, cores = resources.get("GPU", 0.0), resources.get("CPU", 1.0)
            share = min(executor.gpus, all_gpus)
            count = executor.workers or max(1, int(all_gpus // share if share else cores // executor.cpus))
            # A worker that asks for more than there is would never start, and its tasks would wait for ever.
            share = min(share, all_gpus / count)
            kind = ray.remote(num_cpus=min(executor.cpus, cores), num_gpus=share)(_Actor)
            kind = kind.options(max_restarts=TRIES, max_task_retries=TRIES)
            # In a list, Ray passes the reference on and keeps one copy of what it points to.
            shared = [ray.put(make_worker)]
            load = {kind.remote(): 0 for _ in range(count)}
            running: dict[Any, tuple[Any, Any]] = {}
            while noted.number is None and (running or task is not _END):
                while task is not _END and task is not None and len(running) < count * AHEAD:
                    actor = min(load, key=load.__getitem__)
                    load[actor] += 1
                    running[actor.do.remote(shared, task)] = (actor, task)
                    task = next(left, _END)
                ready, _ = ray.wait([next(iter(running))] if ordered else list(running), num_returns=1, timeout=0.5)
                for reference in ready:
                    actor, done = running.pop(reference)
                    load[actor] -= 1
                    try:
                        result = ray.get(reference)
                    except ray.exceptions.RayError as error:
                        result = Failure(str(error))
                    yield done, result
                task = next(left, _END) if task is None else task
        finally:
            ray.shutdown()


def import_ray() -> Any:
    """Import Ray.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError('a Ray cluster needs Ray: pip install "gspool[ray]"') from error
    return ray


def _join(ray: Any, address: str) -> None:
    """Start a cluster for this call, or connect to one.

    Raises:
        ValueError: if there is none at the address.
    """
    quiet = {"logging_level": "error", "log_to_driver": False, "configure_logging": True}
    main = threading.current_thread() is threading.main_thread()
    on_sigterm = signal.getsignal(signal.SIGTERM) if main else None
    try:
        if address == LOCAL:
            # A cluster for one command needs no usage statistics.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            with warnings.catch_warnings():
                # LanceDB warns of forked children; Ray's run another program at once.
                warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
                ray.init(address=LOCAL, include_dashboard=False, **quiet)
        else:
            _check_port(address)
            ray.init(address=address, **quiet)
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"there is no Ray cluster at {address!r} ({first}); start one with `ray start --head`, or give {LOCAL}"
        ) from error
    finally:
        if on_sigterm is not None:
            # Ray sets a handler of its own, which exits without tidying up.
            signal.signal(signal.SIGTERM, on_sigterm)


def _check_port(address: str) -> None:
    """Connect to ``HOST:PORT`` once: Ray itself would wait for five minutes.

    Raises:
        OSError: if nothing listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
