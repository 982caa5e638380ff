"""The same stream of vectors made by many machines: actors of a Ray cluster, each with a model of its own."""

from __future__ import annotations

import copy
import itertools
import os
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gspool.models.device import chosen_device
from gspool.search.decode_ahead import Broken
from gspool.search.embed_stream import EmbeddedBatch, StreamSettings, embed_stream
from gspool.search.image_list import Listed

if TYPE_CHECKING:
    from gspool.models import Embedder

LOCAL = "local"
# Batches in one errand: enough that sending it costs nothing, few enough that little is lost with a machine.
BATCHES_AT_ONCE = 16
# Errands that wait at an actor while it works on another.
ERRANDS_AHEAD = 2
# An actor that dies with its machine is started again, and its errand repeated, so often.
RETRIES = 3


class Worker:
    """One actor: a model, and the stream that `embed_stream` makes with it."""

    def __init__(self, settings: StreamSettings, device: str) -> None:
        self.settings, self.device = settings, device
        self.model: Embedder | None = None

    def embed(self, images: list[Listed], weights: list[Any]) -> list[EmbeddedBatch | Broken]:
        """Embed a list of pictures, which must be found under the same paths on every machine.

        Every errand says where the model is to be had: an actor that was started again has none.
        """
        if self.model is None:
            loaded: Embedder = _ray().get(weights[0])
            self.model = loaded.to(chosen_device(self.device)).eval()
        return list(embed_stream(images, self.model, self.settings))


def ray_stream(
    images: Iterable[Listed], model: Embedder, settings: StreamSettings, address: str, actors: int | None = None
) -> Generator[EmbeddedBatch | Broken, None, None]:
    """Embed by the actors of a Ray cluster, in the order of the list.

    Args:
        images: what to embed; every machine must find the files under the same paths.
        model: the weights are sent from here, so that no machine can hold others.
        settings: of each actor.
        address: ``auto`` for the cluster that this machine belongs to, its address, or ``local`` for a cluster of this
            machine alone that ends with the stream.
        actors: how many; one a GPU of the cluster, or one for every ``workers`` cores where it has none.

    Raises:
        ValueError: if Ray is not installed, or there is no cluster at the address.
    """
    ray = _ray()
    errands = _errands(images, settings.batch_size * BATCHES_AT_ONCE)
    first = next(errands, None)
    if first is None:
        # To start a cluster, or to wait for one, takes seconds.
        return
    _join(ray, address)
    try:
        resources = ray.cluster_resources()
        gpus, cores = int(resources.get("GPU", 0)), int(resources.get("CPU", 1))
        count = actors or gpus or max(1, cores // settings.workers)
        device, share = ("cuda", min(1.0, gpus / count)) if gpus else ("cpu", 0.0)
        kind = ray.remote(num_cpus=min(settings.workers, cores), num_gpus=share)(Worker)
        # In a list, Ray hands over the reference and not the model, which stays here until the last errand is done.
        weights = [ray.put(copy.deepcopy(model).cpu())]
        crew = [
            kind.options(max_restarts=RETRIES, max_task_retries=RETRIES).remote(settings, device) for _ in range(count)
        ]
        waiting: deque[Any] = deque()
        turns = itertools.cycle(crew)
        for errand in itertools.chain([first], errands):
            waiting.append(next(turns).embed.remote(errand, weights))
            if len(waiting) > count * ERRANDS_AHEAD:
                yield from ray.get(waiting.popleft())
        while waiting:
            yield from ray.get(waiting.popleft())
    finally:
        ray.shutdown()


def _errands(images: Iterable[Listed], size: int) -> Iterator[list[Listed]]:
    left = iter(images)
    while errand := list(itertools.islice(left, size)):
        yield errand


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ValueError('embedding by a cluster needs Ray: pip install "gspool[ray]"') from error
    return ray


def _join(ray: Any, address: str) -> None:
    quiet = {"logging_level": "error", "log_to_driver": False, "configure_logging": True}
    if address == LOCAL:
        # A cluster for one command reports to nobody.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with warnings.catch_warnings():
            # LanceDB fears for children that go on with its threads; Ray's run another program at once.
            warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
            ray.init(address=LOCAL, include_dashboard=False, **quiet)
        return
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"there is no Ray cluster at {address!r} ({first}); start one with `ray start --head`, or give {LOCAL}"
        ) from error
