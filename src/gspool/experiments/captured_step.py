"""A training step as one CUDA graph: Python describes it once, and the device repeats it by itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

# A graph is captured after some steps as they are: the optimiser's state must exist, libraries have chosen kernels.
STEPS_BEFORE_CAPTURE = 4


class CaptureFailedError(RuntimeError):
    """A step does something that a CUDA graph cannot hold."""


def working_on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Give the context that captured steps are made in: one stream for everything, because a graph must not wait."""
    if stream is None:
        return nullcontext()
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    return torch.cuda.stream(stream)


def capture_step(
    step: Callable[[], None], stream: torch.cuda.Stream, before_it_is_made: Callable[[], None] | None = None
) -> torch.cuda.CUDAGraph:
    """Write a step down and make it once; ``replay`` of what comes back makes it again, on whatever its inputs hold.

    ``before_it_is_made`` is called once the step is written down and before the first replay: addresses are known then.

    Raises:
        CaptureFailedError: if it asks the device for a value, or does something else that no graph can hold.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step()
    except RuntimeError as wrong:
        # A capture that broke leaves the generator believing that it goes on; a copy believes no such thing.
        generator = torch.cuda.default_generators[stream.device_index]
        generator.graphsafe_set_state(generator.clone_state())
        raise CaptureFailedError(f"this step cannot be captured: {wrong}") from wrong
    if before_it_is_made is not None:
        before_it_is_made()
    # A capture only writes down; the step itself is the first replay.
    graph.replay()
    return graph
