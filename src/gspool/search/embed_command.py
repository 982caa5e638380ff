"""`gspool embed`: a corpus of pictures to a file of vectors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspool.search.help_text import EMBED, EMBED_USAGE
from gspool.terminal.output import check_file_writable, check_writable
from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import WrongArgumentsError, checking_arguments, refuse_below

if TYPE_CHECKING:
    from gspool.search.corpus import EmbeddedCorpus


def embed_command(arguments: Sequence[str]) -> None:
    """Embed, index what is large, and say what came of it.

    Raises:
        WrongArgumentsError: if a value cannot be.
        ValueError: if none of the pictures could be read, and as `embed_corpus`.
    """
    parser = TeachingParser("gspool embed", EMBED, EMBED_USAGE)
    parser.add_argument("model", metavar="MODEL", help="The folder of a run or of a saved model, or a name of the hub.")
    parser.add_argument("images", metavar="IMAGES", nargs="+", help="Folders, globs in quotes, CSV lists, files.")
    parser.add_argument("--out", type=str, required=True, metavar="FILE", help="A .lance, .parquet or .npz file.")
    parser.add_argument("--batch_size", type=int, default=64, help="Images that the model sees at once.")
    parser.add_argument(
        "--precision",
        choices=["auto", "float32", "bfloat16", "float16"],
        default="auto",
        help="Mixed precision; auto is bfloat16 on a GPU that has it, float32 elsewhere.",
    )
    parser.add_argument("--workers", type=int | None, default=None, help="Threads that decode; one a core.")
    parser.add_argument("--device", type=str | None, default=None, help="cpu, cuda ...; a GPU where there is one.")
    parser.add_argument("--max_bytes", type=int, default=64 * 2**20, help="The largest file to read.")
    parser.add_argument("--max_pixels", type=int, default=80_000_000, help="The largest picture to decode.")
    parser.add_argument(
        "--remove_gone", action="store_true", help="Take out the rows of pictures that these IMAGES hold no more."
    )
    parser.add_argument("--recall", type=float, default=0.98, help="Of the approximate index of a large .lance table.")
    parser.add_argument(
        "--ray",
        type=str | None,
        default=None,
        metavar="ADDRESS",
        help="Work by a Ray cluster: auto, an address, local.",
    )
    parser.add_argument("--actors", type=int | None, default=None, help="Models at work in the cluster; one a GPU.")
    parser.add_argument("--progress", type=bool, default=True, help="Show a progress bar.")
    given = parser.parse_args(list(arguments))
    from gspool.search.corpus import embed_corpus
    from gspool.search.decode_ahead import Limits
    from gspool.search.index import needs_approximation, open_index

    _check(given)
    try:
        result = embed_corpus(
            given["model"],
            given["images"],
            given["out"],
            batch_size=given["batch_size"],
            precision=None if given["precision"] == "auto" else given["precision"],
            workers=given["workers"],
            device=given["device"],
            limits=Limits(given["max_bytes"], given["max_pixels"]),
            remove_gone=given["remove_gone"],
            ray=given["ray"],
            actors=given["actors"],
            progress=given["progress"],
        )
    except KeyboardInterrupt:
        print(f"what is done is kept beside or in {given['out']}; the same command goes on with it", file=sys.stderr)
        raise
    print(_told(result))
    if result.bad_list is not None:
        print(f"{result.bad:,} could not be read, see {result.bad_list}")
        if not result.rows:
            raise ValueError(f"none of the {result.bad:,} pictures could be read")
    print(f"{result.path}: {result.rows:,} vectors")
    if result.path.suffix == ".lance":
        index = open_index(result.path)
        if needs_approximation(index):
            index.build(given["recall"], tell=print)
        print(index)


def _told(result: EmbeddedCorpus) -> str:
    """Say what was new, changed, there and gone."""
    told = f"{result.embedded:,} embedded in {result.seconds:,.1f} s"
    told += f", {result.embedded / result.seconds:,.1f} images/s" if result.embedded else ""
    told += f", {result.changed:,} of them again because they changed" if result.changed else ""
    told += f"; {result.skipped:,} were there already"
    told += f", {result.relabelled:,} of them with another label now" if result.relabelled else ""
    if result.removed:
        were = "was gone, and its row is" if result.removed == 1 else "were gone, and their rows are"
        told += f"; {result.removed:,} {were} taken out"
    elif result.gone:
        told += f"; {result.gone:,} {'is' if result.gone == 1 else 'are'} gone (--remove_gone takes the rows out)"
    return told


def _check(given: Any) -> None:
    """Refuse what cannot be, and what cannot be written, before a model is loaded."""
    from gspool.search.approximate import check_recall
    from gspool.search.vector_files import SUFFIXES

    refuse_below(1, **{name: given[name] for name in ("batch_size", "workers", "actors", "max_bytes", "max_pixels")})
    with checking_arguments():
        check_recall(given["recall"])
    out = Path(given["out"]).expanduser()
    if out.suffix not in SUFFIXES:
        raise WrongArgumentsError(f"--out is a {', '.join(SUFFIXES)} file, got {given['out']}")
    if out.suffix == ".lance":
        check_writable(out.parent, "--out")
    else:
        check_file_writable(out, "--out")
