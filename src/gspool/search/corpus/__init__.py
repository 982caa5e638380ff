"""Embed a corpus of any size: pictures stream in, vectors stream out, and an interrupted run continues."""

from __future__ import annotations

import csv
import os
import time
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.executor import Executor
from gspool.search.corpus.known import KnownPictures
from gspool.search.corpus.sources import list_images
from gspool.search.corpus.stream import EmbeddedBatch, embed_on
from gspool.search.index.export import check_name, finish_store, open_store, stored_precision
from gspool.search.index.table import LanceWriter, VectorSettings, write_lock
from gspool.search.model import LIMITS, Limits, default_precision, fingerprint, load_model
from gspool.terminal.bar import WorkBar, work_bar

if TYPE_CHECKING:
    from gspool.models import Embedder

# Vectors are written after this many rows or seconds, whichever comes first: what a crash can cost.
ROWS_AT_ONCE = 4096
SECONDS_AT_ONCE = 30.0


class EmbeddedCorpus(NamedTuple):
    """The outcome: ``embedded`` images are new or changed, ``skipped`` were there already, ``bad`` cannot be read.

    ``rows`` counts all rows of the file; ``bad_list`` names the bad images with reasons, and is None without any.
    ``changed`` of the embedded images replaced a row; ``relabelled`` of the skipped ones have another label now.
    ``gone`` rows belong to pictures that the sources no longer hold; ``removed`` of these were deleted.
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
    """Embed pictures into a .lance table, a .parquet or an .npz file, and continue a file that has some of them.

    Pictures and vectors pass through in batches; about 150 bytes per image stay in memory. The same call after an
    interruption gives the same file. A picture whose file has another size or modification time than when it was
    embedded is embedded again and replaces its row. A picture that cannot be read is left out and listed in
    ``FILE.bad.csv``; it is tried again the next time. A .parquet or .npz file is written at the end, from a Lance table
    in ``FILE.parts``, which is then deleted.

    Args:
        model: a model, or what `load_model` takes.
        images: folders, globs, CSV lists or files, see `list_images`.
        out: the file; its ending decides the format.
        batch_size: images per batch.
        precision: ``float32``, ``bfloat16`` or ``float16``; by default that of a file that exists, otherwise mixed
            bfloat16 on a device that computes in it, and float32 elsewhere.
        workers: decoding threads; one per core, at most 16, unless given.
        device: where to compute, for a model given by name.
        limits: the largest file and picture to read.
        remove_gone: delete the rows of pictures that these sources no longer hold, see `KnownPictures.gone`.
        ray: run on a Ray cluster: ``auto``, its address, or ``local``.
        actors: models at work in that cluster; one per GPU unless given.
        progress: show a bar.

    Raises:
        ValueError: if the model, a source or the format does not fit, the file holds vectors of another model, or it
            cannot be written.
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
    # Cheap checks first: a wrong path should not cost the time to load a model.
    check_name(place)
    total = sum(1 for _ in list_images(sources))
    name = model if isinstance(model, str | Path) else type(model).__name__
    network = load_model(model, device) if isinstance(model, str | Path) else model
    # A file that was begun on another machine goes on in its own precision.
    chosen = precision or stored_precision(place) or default_precision(next(network.parameters()).device)
    settings = VectorSettings(str(name), fingerprint(network), network.out_dim, chosen)
    threads = workers or min(os.cpu_count() or 1, 16)
    executor = Executor(workers=actors or 0, ray=ray, gpus=1.0, cpus=threads)
    if progress:
        made_of = f"{network.settings.backbone}, {network.settings.pooling}, {network.out_dim} numbers"
        where = f"on Ray ({ray})" if ray else f"on {next(network.parameters()).device}"
        print(f"{total:,} pictures; {made_of}, {chosen} {where}", flush=True)
    began = time.perf_counter()
    place.parent.mkdir(parents=True, exist_ok=True)
    with write_lock(place), work_bar("embedding", 0, total, progress, unit="images") as bar:
        writer = open_store(place, settings)
        known = KnownPictures(writer, sources)
        bad_list = place.with_name(f"{place.name}.bad.csv")
        stream = embed_on(executor, known.to_embed(bar), network, batch_size, chosen, threads, limits)
        counts = _write(stream, writer, bad_list, bar)
        gone = known.gone()
        if remove_gone:
            writer.remove(gone)
        rows = writer.rows
        finish_store(writer, place)
    return EmbeddedCorpus(
        path=place,
        rows=rows,
        embedded=counts["embedded"],
        skipped=known.skipped,
        bad=counts["bad"],
        bad_list=bad_list if counts["bad"] else None,
        seconds=time.perf_counter() - began,
        changed=counts["changed"],
        relabelled=known.relabelled,
        gone=len(gone),
        removed=len(gone) if remove_gone else 0,
    )


def _write(
    stream: Generator[EmbeddedBatch, None, None], writer: LanceWriter, bad_list: Path, bar: WorkBar
) -> Counter[str]:
    """Write vectors to the table, and broken pictures line by line to a CSV file; count both."""
    counts: Counter[str] = Counter()
    waiting: list[EmbeddedBatch] = []
    saved = time.monotonic()

    def save() -> None:
        nonlocal saved
        records = [record for batch in waiting for record in batch.records]
        vectors = [batch.vectors for batch in waiting if batch.vectors is not None]
        # Dropped first: after a full disk, say, the way out of the run must not try to write them again.
        waiting.clear()
        if records:
            writer.append(records, torch.cat(vectors).numpy())
            counts["embedded"] += len(records)
            counts["changed"] += sum(record.row is not None for record in records)
        saved = time.monotonic()

    # Bad pictures of an earlier run are met again, unless they were repaired.
    bad_list.unlink(missing_ok=True)
    try:
        for batch in stream:
            if batch.broken is not None:
                with bad_list.open("a", encoding="utf-8", newline="") as file:
                    lines = csv.writer(file)
                    if not counts["bad"]:
                        lines.writerow(("path", "reason"))
                    lines.writerow((batch.broken.record.path, batch.broken.problem))
                counts["bad"] += 1
                bar.advance(f"{counts['bad']:,} bad")
                continue
            waiting.append(batch)
            bar.advance(steps=len(batch.records))
            rows = sum(len(batch.records) for batch in waiting)
            if rows >= ROWS_AT_ONCE or time.monotonic() - saved >= SECONDS_AT_ONCE:
                save()
    finally:
        stream.close()
        # Whole batches only: what follows an interruption is then batched, and so rounded, as without one.
        save()
    return counts
