"""`gspool serve`: a model and its corpus behind a page and an HTTP interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import WrongArgumentsError, checking_arguments

PAGE = """
Serve search by image: a page on which a picture is dropped, and an HTTP interface for programs, described at /docs.

    gspool embed runs/NAME pictures/ --out vectors.lance
    gspool serve runs/NAME --index vectors.lance                   http://127.0.0.1:7860, for this machine alone
    gspool serve runs/NAME --index vectors.lance --host 0.0.0.0    for everybody who can reach this machine
    curl -F image=@bird.jpg http://127.0.0.1:7860/api/search

Uploads are limited (--max-mb, --max-pixels), only pictures of known formats are read, no file of the server can be
asked for by its path, and nothing is reported to anybody. Who can reach the server can ask it: there is no password,
so put it behind a proxy that has one before you open it to others. Ctrl-C stops it.
"""
USAGE = "gspool serve MODEL --index VECTORS [--host NAME] [--port NUMBER] [--share]"


def serve_command(arguments: Sequence[str]) -> None:
    """Serve until Ctrl-C.

    Raises:
        WrongArgumentsError: if a value cannot be.
        ValueError: if the model, the vectors and the options do not fit together.
    """
    parser = TeachingParser("gspool serve", PAGE, USAGE)
    parser.add_argument("model", metavar="MODEL", help="The folder of a run or of a saved model, or a name of the hub.")
    parser.add_argument("--index", metavar="VECTORS", type=str, default=None, help="What gspool embed wrote.")
    parser.add_argument("--host", type=str, default="127.0.0.1", help="The address to listen at; 0.0.0.0 is all.")
    parser.add_argument("--port", type=int, default=7860, help="The port to listen at; 0 takes a free one.")
    parser.add_argument("--share", action="store_true", help="Also open a public address by Gradio's tunnel.")
    parser.add_argument(
        "--allow-host",
        nargs="+",
        type=str,
        default=[],
        metavar="NAME",
        help="More names that the server is reached by.",
    )
    parser.add_argument("--max-mb", type=float, default=10.0, help="The largest upload, in MiB.")
    parser.add_argument("--max-pixels", type=int, default=25_000_000, help="The largest picture, width times height.")
    parser.add_argument("--device", type=str, default=None, help="cpu, cuda ...; a GPU where there is one.")
    given = parser.parse_args(list(arguments))
    if given["index"] is None:
        parser.error(
            "--index is needed: the vectors of a corpus, made by gspool embed MODEL IMAGES --out vectors.lance"
        )
    if not 0 <= given["port"] <= 65535:
        raise WrongArgumentsError(f"--port is a number from 0 to 65535, got {given['port']}")
    _serve(given)


def _serve(given: Any) -> None:
    # Gradio and LanceDB take seconds to import; a wrong word should be answered before.
    from gspool.search.index import needs_approximation, open_index
    from gspool.search.model_source import load_model
    from gspool.search.serve_app import create_app, private_uploads
    from gspool.search.serve_lookup import Lookup
    from gspool.search.serve_run import listening, open_tunnel, run_server, served_names
    from gspool.search.upload import UploadLimits

    with checking_arguments():
        limits = UploadLimits(int(given["max_mb"] * 2**20), given["max_pixels"]).check()
    # The port first: that it is taken should not be told after a model was loaded.
    with listening(given["host"], given["port"]) as (listener, port), private_uploads():
        index = open_index(given["index"])
        lookup = Lookup(load_model(given["model"], given["device"]), index)
        if needs_approximation(index) and index.path.suffix == ".lance":
            index.build(tell=print)
        print(f"index   {index}")
        public = open_tunnel(port) if given["share"] else None
        hosts = served_names(given["host"], given["allow_host"], public)
        run_server(create_app(lookup, limits, hosts), listener, given["host"], port, public)
