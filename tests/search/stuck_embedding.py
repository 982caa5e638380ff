"""A process that embeds and gets stuck in a batch, to be killed there."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = """
import time
from gspool.search.corpus import embed, stream
embed.SECONDS_AT_ONCE = 0.0
embed_batch, calls = stream.embed_batch, []
def stuck(*arguments):
    calls.append(1)
    if len(calls) == {batch}:
        print("stuck", flush=True)
        time.sleep(600)
    return embed_batch(*arguments)
stream.embed_batch = stuck
embed.embed_corpus({model!r}, {pictures!r}, {out!r}, batch_size=4, device="cpu")
"""


@contextmanager
def stuck_in_batch(batch: int, model: Path, pictures: Path, out: Path) -> Iterator[None]:
    """Embed in batches of four until the given one, which never ends; kill the process afterwards."""
    program = PROGRAM.format(batch=batch, model=str(model), pictures=str(pictures), out=str(out))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"stuck\n"
            yield
        finally:
            process.send_signal(signal.SIGKILL)
