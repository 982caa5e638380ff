"""`gspool serve`: a model and its corpus behind a page and an HTTP interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gspool.search.search_command import add_ranking_arguments, chosen_rerank, chosen_threshold
from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import WrongArgumentsError, checking_arguments, refuse_below

PAGE = """
Serve search by image: a page to drop a picture on, and an HTTP interface for programs, described at /docs.

    gspool embed runs/NAME pictures/ --out vectors.lance
    gspool serve runs/NAME --index vectors.lance                   http://127.0.0.1:7860, for this machine only
    gspool serve runs/NAME --index vectors.lance --host 0.0.0.0 --token SECRET      for others, with a password
    curl -F image=@bird.jpg http://127.0.0.1:7860/api/search

Uploads are limited in bytes, pixels and number. One picture is decoded at a time. No file of the server can be read by
its path, pages of other sites cannot send requests, and nothing is reported to anybody. Clients on other machines may
send 600 requests a minute (--rate). With --token, or the environment variable GSPOOL_TOKEN, browsers ask for it as a
password (with any user name) and programs send it: curl -H "Authorization: Bearer SECRET". There is no encryption:
put a reverse proxy with HTTPS before a server that others use. Ctrl-C stops it.
"""
USAGE = "gspool serve MODEL --index VECTORS [--host NAME] [--port NUMBER] [--token SECRET] [--share]"
TOKEN_VARIABLE = "GSPOOL_TOKEN"
DEFAULT_RATE = 600


def serve_command(arguments: Sequence[str]) -> None:
    """Serve until Ctrl-C.

    Raises:
        WrongArgumentsError: if an option has an impossible value.
        ValueError: if the model, the vectors and the options do not fit together.
    """
    given = _parser().parse_args(list(arguments))
    if given.index is None:
        raise WrongArgumentsError(
            "--index is needed: the vectors of a corpus, made by gspool embed MODEL IMAGES --out vectors.lance"
        )
    if not 0 <= given.port <= 65535:
        raise WrongArgumentsError(f"--port is a number from 0 to 65535, got {given.port}")
    refuse_below(0, rate=given.rate)
    for name in ("timeout", "max_uploads_mb"):
        if given[name] <= 0:
            raise WrongArgumentsError(f"--{name.replace('_', '-')} must be positive, got {given[name]}")
    if given.token == "":
        raise WrongArgumentsError("--token is empty; give a secret, or leave it out")
    _serve(given)


def _parser() -> TeachingParser:
    parser = TeachingParser("gspool serve", PAGE, USAGE)
    parser.add_argument("model", metavar="MODEL", help="The folder of a run or a saved model, or a name on the hub.")
    parser.add_argument("--index", metavar="VECTORS", type=str, default=None, help="What gspool embed wrote.")
    parser.add_argument("--host", type=str, default="127.0.0.1", help="The address to listen at; 0.0.0.0 is all.")
    parser.add_argument("--port", type=int, default=7860, help="The port to listen at; 0 takes a free one.")
    parser.add_argument("--share", action="store_true", help="Also open a public address by Gradio's tunnel.")
    parser.add_argument(
        "--allow-host", nargs="+", type=str, default=[], metavar="NAME", help="More host names of the server."
    )
    parser.add_argument(
        "--token", type=str | None, default=None, metavar="SECRET", help=f"Needed to ask; or set {TOKEN_VARIABLE}."
    )
    parser.add_argument(
        "--rate",
        type=int | None,
        default=None,
        help=f"Requests a minute per client, 0 for any; {DEFAULT_RATE} except for this machine.",
    )
    parser.add_argument("--timeout", type=float, default=30.0, help="Seconds a client may pause in a request.")
    parser.add_argument("--max-mb", type=float, default=10.0, help="The largest upload, in MiB.")
    parser.add_argument("--max-pixels", type=int, default=25_000_000, help="The largest picture, width times height.")
    parser.add_argument("--max-uploads-mb", type=float, default=256.0, help="All uploads that are kept, in MiB.")
    add_ranking_arguments(parser)
    parser.add_argument("--device", type=str | None, default=None, help="cpu, cuda ...; a GPU if there is one.")
    return parser


def _serve(given: Any) -> None:
    # Gradio and LanceDB take seconds to import; wrong options are answered before.
    from gspool.search.images import Limits
    from gspool.search.index.index import needs_approximation, open_index
    from gspool.search.model_source import load_model
    from gspool.search.serve.access import RateLimit, is_loopback
    from gspool.search.serve.app import create_app, private_uploads
    from gspool.search.serve.guard import Rules
    from gspool.search.serve.lookup import Lookup
    from gspool.search.serve.run import listening, open_tunnel, run_server, served_names

    host, token = given.host, given.token or os.environ.get(TOKEN_VARIABLE) or None
    with checking_arguments():
        rerank = chosen_rerank(given)
        limits = Limits(int(given.max_mb * 2**20), given.max_pixels).check()
    # The port first: a port that is taken should be reported before a model is loaded.
    with listening(host, given.port) as (listener, port), private_uploads():
        index = open_index(given.index)
        lookup = Lookup(load_model(given.model, given.device), index, rerank, chosen_threshold(given))
        if needs_approximation(index):
            index.build(tell=print)
        print(f"index   {index}")
        names = list(given.allow_host)
        if given.share:
            public = open_tunnel(port)
            print(f"public  {public}")
            names.append(public.partition("://")[2].partition("/")[0])
        if (given.share or not is_loopback(host)) and token is None:
            print("others can reach this server without a password; --token SECRET sets one")
        # The tunnel's visitors come from this machine too.
        rate = RateLimit(DEFAULT_RATE, loopback=given.share) if given.rate is None else RateLimit(given.rate)
        rules = Rules(
            origins=tuple(name.lower() for name in names),
            token=token,
            rate=rate,
            seconds=given.timeout,
            folder_bytes=int(given.max_uploads_mb * 2**20),
        )
        app = create_app(lookup, limits, served_names(host, names), rules)
        shown = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
        run_server(app, listener, f"http://{shown}:{port}", given.timeout)
