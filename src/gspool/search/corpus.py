"""Embed a corpus of any size: pictures stream in, vectors stream out, and an interrupted run goes on where it was."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.search.bad_list import BadList
from gspool.search.corpus_sources import CorpusSources
from gspool.search.decode_ahead import LIMITS, Broken, Limits
from gspool.search.embed_stream import EmbeddedBatch, Seen, StreamSettings, embed_stream
from gspool.search.image_list import list_images
from gspool.search.known_pictures import KnownPictures
from gspool.search.model_source import default_precision, fingerprint, load_model
from gspool.search.ray_stream import ray_stream
from gspool.search.vector_files import VectorWriter, only_writer, open_writer
from gspool.search.vector_rows import VectorRows, VectorSettings
from gspool.terminal.bar import WorkBar, work_bar

if TYPE_CHECKING:
    from gspool.models import Embedder

# Vectors are made safe after this many rows or seconds, whichever comes first: what a crash can cost.
ROWS_AT_ONCE = 4096
SECONDS_AT_ONCE = 30.0


class EmbeddedCorpus(NamedTuple):
    """What came of it: ``embedded`` images are new or changed, ``skipped`` were there before, ``bad`` not to be read.

    ``rows`` is all that the file now holds; ``bad_list`` names the bad images with reasons, and is None without any.
    Of the embedded ones ``changed`` were there before, and differ by now; ``relabelled`` of the skipped have another
    label. ``gone`` rows are of pictures that the sources hold no more, and ``removed`` of these were taken out.
    """

    path: Path
    rows: int
    embedded: int
    skipped: int
    bad: int
    bad_list: Path | None
    seconds: float
    changed: int = 0
    relabelled: int = 0
    gone: int = 0
    removed: int = 0


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
    remove_gone: bool = False,
    ray: str | None = None,
    actors: int | None = None,
    progress: bool = False,
) -> EmbeddedCorpus:
    """Embed pictures into a .lance table, a .parquet or an .npz file; go on, where the file has some of them already.

    Pictures and vectors pass through in batches. What stays in memory is some 150 bytes an image, to know which are
    done. The same call after an interruption gives the same file. A picture whose file has another size or time of
    change than when it was embedded is embedded again, and takes the place of its row. A picture that cannot be read
    is left out and listed in ``FILE.bad.csv`` beside it; those are tried again the next time.

    Args:
        model: a model, or what `load_model` takes.
        images: folders, globs, CSV lists or files, see `list_images`.
        out: the file; its ending says which kind.
        batch_size: images that the model sees at once.
        precision: ``float32``, ``bfloat16`` or ``float16``; mixed bfloat16 on a GPU that has it, float32 elsewhere.
        workers: threads that decode; one a core, at most 16, unless given.
        device: where to compute, for a model given by name.
        limits: the largest file and picture to read.
        remove_gone: take out the rows of pictures that these sources hold no more, see `CorpusSources`.
        ray: spread the work over a Ray cluster: ``auto``, its address, or ``local``; see `ray_stream`.
        actors: models at work in that cluster; one a GPU unless given.
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
        ...     result = embed_corpus(model, f"{folder}/*.png", Path(folder) / "vectors.parquet")
        ...     again = embed_corpus(model, f"{folder}/*.png", Path(folder) / "vectors.parquet")
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
        known = KnownPictures(writer, CorpusSources(sources))
        work = _Work(writer, known, bar, BadList(place))
        new = known.to_embed(bar)
        how = StreamSettings(batch_size, chosen, workers or min(os.cpu_count() or 1, 16), limits)
        work.run(embed_stream(new, network, how) if ray is None else ray_stream(new, network, how, ray, actors))
        gone = known.gone()
        if remove_gone:
            writer.remove(gone)
        writer.finish()
    return EmbeddedCorpus(
        place,
        writer.rows,
        work.embedded,
        known.skipped,
        work.bad.count,
        work.bad.path_if_any,
        time.perf_counter() - began,
        work.changed,
        known.relabelled,
        len(gone),
        len(gone) if remove_gone else 0,
    )


class _Work:
    """The end of the stream: vectors to the file, broken pictures to their list."""

    def __init__(self, writer: VectorWriter, known: KnownPictures, bar: WorkBar, bad: BadList) -> None:
        self.writer, self.known, self.bar, self.bad = writer, known, bar, bad
        self.embedded = self.changed = 0
        self.pending: list[Seen] = []
        self.vectors: list[torch.Tensor] = []
        self.saved = time.monotonic()

    def run(self, stream: Generator[EmbeddedBatch | Broken, None, None]) -> None:
        try:
            for piece in stream:
                if isinstance(piece, Broken):
                    self.bad.add(piece)
                    self.known.underway.pop(piece.listed.path, None)
                    self.bar.advance(f"{self.bad.count:,} bad")
                else:
                    self._take(piece)
        finally:
            stream.close()
            # Whole batches only: what comes after an interruption is then batched, and so rounded, as without one.
            self._save()

    def _take(self, batch: EmbeddedBatch) -> None:
        self.vectors.append(batch.vectors)
        self.pending += batch.pictures
        self.bar.advance(steps=len(batch.pictures))
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
                [self.known.underway.pop(picture.listed.path) for picture in self.pending],
            )
            # Let go first: after a full disk, say, the way out of the run must not try to write them once more.
            self.pending, self.vectors = [], []
            self.writer.append(rows)
            self.embedded += len(rows.paths)
            self.changed += rows.replacing
        self.saved = time.monotonic()
