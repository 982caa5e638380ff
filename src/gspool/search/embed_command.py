"""`gspool embed`: a corpus of pictures to a file of vectors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse.typing import PositiveInt

from gspool.terminal.output import check_output, check_writable
from gspool.terminal.parser import Share, TeachingParser
from gspool.terminal.status import checking_arguments

if TYPE_CHECKING:
    from gspool.search.corpus import EmbeddedCorpus

PAGE = """
Embed images into a vector index: one vector per image, with its path, label and size.

    gspool embed runs/NAME pictures/ --out vectors.lance           a folder; labels are its sub-folders
    gspool embed runs/NAME "scans/**/*.png" list.csv --out vectors.parquet
    gspool embed owner/name pictures/ --out vectors.npz            a model of the Hugging Face hub
    gspool embed runs/NAME /shared/pictures --out vectors.lance --ray auto     on all machines of a Ray cluster

Use a .lance table for `gspool search` and `gspool serve`; .parquet and .npz are exports for other programs (and can be
searched too). A CSV list has a column path and optionally a column label. Run the same command again after Ctrl-C, a
crash, or when pictures were added, changed or deleted: rows that are up to date are skipped, pictures with another size
or modification time are embedded again, and rows of deleted pictures are counted, and removed with --remove_gone.
Pictures that cannot be read are listed in FILE.bad.csv. From 100,000 vectors on, a .lance table gets an approximate
index; its recall on vectors of the corpus is measured and printed.
"""
USAGE = "gspool embed MODEL IMAGES... --out FILE.lance|.parquet|.npz [--OPTION VALUE ...]"


def embed_command(arguments: Sequence[str]) -> None:
    """Embed, index what is large, and print the outcome; an error if none of the pictures could be read."""
    parser = _parser()
    given = parser.parse_args(list(arguments))
    if given.ray is None:
        parser.refuse(given, "is about a Ray cluster, --ray", "actors")
    from gspool.search.corpus import embed_corpus
    from gspool.search.index import open_index
    from gspool.search.index.export import SUFFIXES, check_name
    from gspool.search.model import Limits

    # Before a model is loaded. A Lance table is a folder, which may be there already.
    out = Path(given.out).expanduser()
    if out.suffix == ".lance":
        check_writable(out.parent, "--out")
    else:
        check_output(str(out), "--out", SUFFIXES)
    with checking_arguments():
        check_name(out)
    passed_on = ("batch_size", "workers", "device", "remove_gone", "ray", "actors", "progress")
    try:
        result = embed_corpus(
            given.model,
            given.images,
            out,
            precision=None if given.precision == "auto" else given.precision,
            limits=Limits(given.max_bytes, given.max_pixels),
            **{name: given[name] for name in passed_on},
        )
    except KeyboardInterrupt:
        print(f"the rows so far are kept in or beside {given.out}; run the same command to continue", file=sys.stderr)
        raise
    print(_summary(result))
    if result.bad_list is not None:
        print(f"{result.bad:,} could not be read, see {result.bad_list}")
        if not result.rows:
            raise ValueError(f"none of the {result.bad:,} pictures could be read")
    print(f"{result.path}: {result.rows:,} vectors")
    if result.path.suffix == ".lance":
        index = open_index(result.path)
        if index.needs_approximation:
            index.build(given.recall, tell=print)
        print(index)


def _parser() -> TeachingParser:
    parser = TeachingParser("gspool embed", PAGE, USAGE)
    add = parser.add_argument
    add("model", metavar="MODEL", help="The folder of a run or a saved model, or a name on the hub.")
    add("images", metavar="IMAGES", nargs="+", help="Folders, globs in quotes, CSV lists, files.")
    add("--out", type=str, required=True, metavar="FILE", help="A .lance, .parquet or .npz file.")
    add("--batch_size", type=PositiveInt, default=64, help="Images per batch.")
    add(
        "--precision",
        choices=["auto", "float32", "bfloat16", "float16"],
        default="auto",
        help="Mixed precision; auto is that of the file, or bfloat16 where the device computes in it, else float32.",
    )
    add("--workers", type=PositiveInt | None, default=None, help="Decoding threads; one per core.")
    add("--device", type=str | None, default=None, help="cpu, cuda ...; a GPU if there is one.")
    add("--max_bytes", type=PositiveInt, default=256 * 2**20, help="The largest file to read.")
    add("--max_pixels", type=PositiveInt, default=80_000_000, help="The largest picture to decode.")
    add("--remove_gone", action="store_true", help="Remove the rows of pictures that these IMAGES no longer hold.")
    add("--recall", type=Share, default=0.98, help="Of the approximate index of a large .lance table.")
    add("--ray", type=str | None, default=None, metavar="ADDRESS", help="A Ray cluster: auto, an address, local.")
    add("--actors", type=PositiveInt | None, default=None, help="Models in the cluster; one per GPU.")
    add("--progress", type=bool, default=True, help="Show a progress bar.")
    return parser


def _summary(result: EmbeddedCorpus) -> str:
    line = f"{result.embedded:,} embedded in {result.seconds:,.1f} s"
    line += f", {result.embedded / result.seconds:,.1f} images/s" if result.embedded else ""
    line += f", {result.changed:,} of them again because they changed" if result.changed else ""
    line += f"; {result.skipped:,} were there already"
    line += f", {result.relabelled:,} of them with another label now" if result.relabelled else ""
    if result.removed:
        line += f"; {result.removed:,} {'was' if result.removed == 1 else 'were'} gone and removed"
    elif result.gone:
        line += f"; {result.gone:,} {'is' if result.gone == 1 else 'are'} gone (--remove_gone removes the rows)"
    return line
