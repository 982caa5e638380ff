"""Bring finished trainings from one machine to another in files of limited size.

    python -m gspool.experiments.benchmark.pieces pack STORE FOLDER --megabytes 15     # where they were made
    python -m gspool.experiments.benchmark.pieces unpack STORE FOLDER                   # where figures are written

STORE is a folder of finished trainings, such as runs/reproduce/benchmark/cub-fair-keras-resnet50. Unpacking adds to
what is there: a training that both machines have stays as it is here, unless time had cut it short.
`gspool reproduce benchmark --train false` then writes the figures of all of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
from pathlib import Path

from gspool.experiments.benchmark.store import Store

LEDGER, EMBEDDINGS = "runs.jsonl", "embeddings-{:02d}.tar"
# A tar rounds every file up to blocks of 512 bytes, adds a header each, and ends in at most this much.
BLOCK, HEADER, TRAILER = 512, 512, 10_240


def pack(store: Path, folder: Path, limit: int, newer_than: float = 0.0) -> list[Path]:
    """Write the ledger and as many tars of embeddings as it takes, none of them larger than ``limit`` bytes.

    Args:
        store: the folder of finished trainings.
        folder: where the pieces go.
        limit: bytes.
        newer_than: leaves out embeddings that were written before this time, in seconds as files count it.

    Raises:
        ValueError: if there is nothing to pack, or a file alone is larger than a piece may be.
    """
    if not (store / LEDGER).is_file():
        raise ValueError(f"there are no finished trainings in {store}: it holds no {LEDGER}")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(store / LEDGER, folder / LEDGER)
    pieces: list[list[Path]] = []
    room = 0
    for file in sorted(store.glob("*.safetensors")):
        if file.stat().st_mtime < newer_than:
            continue
        size = HEADER + -(-file.stat().st_size // BLOCK) * BLOCK
        if size > limit - TRAILER:
            raise ValueError(f"{file.name} has {size} bytes, and a piece may have {limit - TRAILER}: allow larger ones")
        if size > room:
            pieces.append([])
            room = limit - TRAILER
        pieces[-1].append(file)
        room -= size
    written = [folder / LEDGER]
    for number, files in enumerate(pieces):
        path = folder / EMBEDDINGS.format(number)
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for file in files:
                tar.add(file, file.name)
        written.append(path)
    return written


def unpack(store: Path, folder: Path) -> int:
    """Add the trainings of packed pieces to a store, and give how many were new."""
    here, there = Store(store), Store(folder)
    store.mkdir(parents=True, exist_ok=True)
    new = []
    for words, found in there.ledger.entries.items():
        asked = json.loads(words)
        mine = here.get(asked)
        if mine is None or (mine["ending"] == "time" and found["ending"] != "time"):
            new.append((asked, found))
    names = {here.path(asked).name for asked, _ in new}
    for piece in sorted(folder.glob(EMBEDDINGS.replace("{:02d}", "*"))):
        with tarfile.open(piece) as tar:
            for member in tar.getmembers():
                # Of what is known already, embeddings that are missing here are welcome.
                if member.isfile() and (member.name in names or not (store / member.name).is_file()):
                    tar.extract(member, store, filter="data")
    for asked, found in new:
        here.ledger.put(asked, found)
    return len(new)


def main(arguments: list[str] | None = None) -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("store", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=15.0, help="how large a piece may be")
    parser.add_argument("--since", type=Path, default=None, help="leave out embeddings older than this file")
    options = parser.parse_args(arguments)
    if options.what == "unpack":
        print(f"{unpack(options.store, options.folder)} trainings were new")
        return
    since = 0.0 if options.since is None else options.since.stat().st_mtime
    for path in pack(options.store, options.folder, int(options.megabytes * 2**20), since):
        print(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
