"""Embed a corpus of any size: pictures stream in, vectors stream out, and an interrupted run goes on where it was."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.search.bad_list import BadList
from gspool.search.decode_ahead import LIMITS, Broken, Decoded, Limits, decode_ahead
from gspool.search.image_list import Listed, list_images
from gspool.search.model_source import default_precision, embed_batch, fingerprint, load_model
from gspool.search.vector_files import VectorWriter, only_writer, open_writer
from gspool.search.vector_rows import VectorRows, VectorSettings
from gspool.terminal.bar import WorkBar, work_bar

if TYPE_CHECKING:
    from gspool.models import Embedder

# Vectors are made safe after this many rows or seconds, whichever comes first: what a crash can cost.
ROWS_AT_ONCE = 4096
SECONDS_AT_ONCE = 30.0


class EmbeddedCorpus(NamedTuple):
    """What came of it: ``embedded`` images are new, ``skipped`` were there before, ``bad`` could not be read.

    ``rows`` is all that the file now holds; ``bad_list`` names the bad images with reasons, and is None without any.
    """

    path: Path
    rows: int
    embedded: int
    skipped: int
    bad: int
    bad_list: Path | None
    seconds: float


def embed_corpus(
    model: Embedder | str | Path,
    images: Sequence[str | Path] | str | Path,
    out: str | Path,
    *,
    batch_size: int = 64,
    precision: str | None = None,
    workers: int | None = None,
    device: str | torch.device | None = None,
    limits: Limits = LIMITS,
    progress: bool = False,
) -> EmbeddedCorpus:
    """Embed pictures into a .lance table, a .parquet or an .npz file; go on, where the file has some of them already.

    Pictures and vectors pass through in batches. What stays in memory is some 100 bytes an image, to know which are
    done. The same call after an interruption gives the same file. A picture that cannot be read is left out and listed
    in ``FILE.bad.csv`` beside it; those are tried again the next time.

    Args:
        model: a model, or what `load_model` takes.
        images: folders, globs, CSV lists or files, see `list_images`.
        out: the file; its ending says which kind.
        batch_size: images that the model sees at once.
        precision: ``float32``, ``bfloat16`` or ``float16``; mixed bfloat16 on a GPU that has it, float32 elsewhere.
        workers: threads that decode; one a core, at most 16, unless given.
        device: where to compute, for a model given by name.
        limits: the largest file and picture to read.
        progress: show a bar.

    Raises:
        ValueError: if the model, a source or the kind of file does not fit, or the file holds vectors of another model.
        FileNotFoundError: if there are no such images.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from gspool import Embedder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for shade in (0, 90, 200):
        ...         Image.new("L", (40, 40), shade).save(Path(folder) / f"{shade}.png")
        ...     model = Embedder("resnet20", pooling="gap", dim=8)
        ...     result = embed_corpus(model, folder, Path(folder) / "vectors.parquet")
        ...     again = embed_corpus(model, folder, Path(folder) / "vectors.parquet")
        >>> (result.embedded, result.bad), (again.embedded, again.skipped)
        ((3, 0), (0, 3))
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    sources = [images] if isinstance(images, str | Path) else list(images)
    place = Path(out).expanduser()
    # The cheap questions first: a wrong path should not cost the time it takes to load a model.
    total = sum(1 for _ in list_images(sources))
    name = model if isinstance(model, str | Path) else type(model).__name__
    network = load_model(model, device) if isinstance(model, str | Path) else model
    chosen = precision or default_precision(next(network.parameters()).device)
    settings = VectorSettings(str(name), fingerprint(network), network.out_dim, chosen)
    began = time.perf_counter()
    with only_writer(place), work_bar("embedding", 0, total, progress, unit="images") as bar:
        writer = open_writer(place, settings)
        work = _Work(network, writer, bar, chosen, BadList(place))
        done = Done(writer.paths())
        threads = workers or min(os.cpu_count() or 1, 16)
        work.run(_new(sources, done, bar), batch_size, threads, limits)
        writer.finish()
    seconds = time.perf_counter() - began
    bad = work.bad
    return EmbeddedCorpus(
        place, writer.rows, work.embedded, total - work.embedded - bad.count, bad.count, bad.path_if_any, seconds
    )


class Done:
    """The paths that need no embedding, as digests of 16 bytes however long they are."""

    def __init__(self, paths: Iterator[str]) -> None:
        self.digests = {self._digest(path) for path in paths}

    def add(self, path: str) -> bool:
        """Note a path, and say whether it is new."""
        digest = self._digest(path)
        if digest in self.digests:
            return False
        self.digests.add(digest)
        return True

    @staticmethod
    def _digest(path: str) -> bytes:
        return blake2b(os.fsencode(path), digest_size=16).digest()


def _new(sources: Sequence[str | Path], done: Done, bar: WorkBar) -> Iterator[Listed]:
    for listed in list_images(sources):
        if done.add(listed.path):
            yield listed
        else:
            bar.advance()


class _Work:
    """The loop: decoded pictures to batches, batches to vectors, vectors to the file."""

    def __init__(self, model: Embedder, writer: VectorWriter, bar: WorkBar, precision: str, bad: BadList) -> None:
        self.model, self.writer, self.bar, self.precision, self.bad = model, writer, bar, precision, bad
        self.embedded = 0
        self.pending: list[Decoded] = []
        self.vectors: list[torch.Tensor] = []
        self.saved = time.monotonic()

    def run(self, images: Iterator[Listed], batch_size: int, workers: int, limits: Limits) -> None:
        batch: list[Decoded] = []
        pictures = decode_ahead(images, self.model, workers, ahead=2 * batch_size + workers, limits=limits)
        try:
            for picture in pictures:
                if isinstance(picture, Broken):
                    self.bad.add(picture)
                    self.bar.advance(f"{self.bad.count:,} bad")
                    continue
                batch.append(picture)
                if len(batch) == batch_size:
                    self._embed(batch)
                    batch = []
            if batch:
                self._embed(batch)
        finally:
            pictures.close()
            # Whole batches only: what comes after an interruption is then batched, and so rounded, as without one.
            self._save()

    def _embed(self, batch: list[Decoded]) -> None:
        vectors = embed_batch(self.model, torch.stack([picture.image for picture in batch]), self.precision).embedding
        self.vectors.append(vectors.float().cpu())
        # The pixels have done their work; names and sizes wait for the file.
        self.pending += [picture._replace(image=torch.empty(0)) for picture in batch]
        self.bar.advance(steps=len(batch))
        if len(self.pending) >= ROWS_AT_ONCE or time.monotonic() - self.saved >= SECONDS_AT_ONCE:
            self._save()

    def _save(self) -> None:
        if self.pending:
            rows = VectorRows(
                [picture.listed.path for picture in self.pending],
                [picture.listed.label for picture in self.pending],
                [picture.width for picture in self.pending],
                [picture.height for picture in self.pending],
                torch.cat(self.vectors).numpy(),
            )
            # Let go first: after a full disk, say, the way out of the run must not try to write them once more.
            self.pending, self.vectors = [], []
            self.writer.append(rows)
            self.embedded += len(rows.paths)
        self.saved = time.monotonic()
