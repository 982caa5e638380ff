"""`gspool serve`: a model and its corpus behind a page and an HTTP interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt, restricted_number_type

from gspool.search.search_command import add_ranking_arguments, build_if_needed, chosen_rerank, chosen_threshold
from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import WrongArgumentsError

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
Port = restricted_number_type("Port", int, [(">=", 0), ("<=", 65_535)])


def serve_command(arguments: Sequence[str]) -> None:
    """Serve until Ctrl-C."""
    given = _parser().parse_args(list(arguments))
    if given.index is None:
        raise WrongArgumentsError(
            "--index is needed: the vectors of a corpus, made by gspool embed MODEL IMAGES --out vectors.lance"
        )
    if given.token == "":
        raise WrongArgumentsError("--token is empty; give a secret, or leave it out")
    _serve(given)


def _parser() -> TeachingParser:
    parser = TeachingParser("gspool serve", PAGE, USAGE)
    add = parser.add_argument
    add("model", metavar="MODEL", help="The folder of a run or a saved model, or a name on the hub.")
    add("--index", metavar="VECTORS", type=str, default=None, help="What gspool embed wrote.")
    add("--host", type=str, default="127.0.0.1", help="The address to listen at; 0.0.0.0 is all.")
    add("--port", type=Port, default=7860, help="The port to listen at; 0 takes a free one.")
    add("--share", action="store_true", help="Also open a public address by Gradio's tunnel.")
    add("--allow-host", nargs="+", type=str, default=[], metavar="NAME", help="More host names of the server.")
    add("--token", type=str | None, default=None, metavar="SECRET", help=f"Needed to ask; or set {TOKEN_VARIABLE}.")
    rate = f"Requests a minute per client, 0 for any; {DEFAULT_RATE} except for this machine."
    add("--rate", type=NonNegativeInt | None, default=None, help=rate)
    add("--timeout", type=PositiveFloat, default=30.0, help="Seconds a client may pause in a request.")
    add("--max-mb", type=PositiveFloat, default=10.0, help="The largest upload, in MiB.")
    add("--max-pixels", type=PositiveInt, default=25_000_000, help="The largest picture, width times height.")
    add("--max-uploads-mb", type=PositiveFloat, default=256.0, help="All uploads that are kept, in MiB.")
    add_ranking_arguments(parser)
    add("--device", type=str | None, default=None, help="cpu, cuda ...; a GPU if there is one.")
    return parser


def _serve(given: Any) -> None:
    # Gradio and LanceDB take seconds to import; wrong options are answered before.
    from gspool.search.index import open_index
    from gspool.search.model import Limits, load_model
    from gspool.search.serve.app import LOOPBACK, create_app, listening, open_tunnel, run_server
    from gspool.search.serve.guard import RateLimit, Rules, is_loopback
    from gspool.search.serve.lookup import Lookup

    host, token = given.host, given.token or os.environ.get(TOKEN_VARIABLE) or None
    # The port first: a port that is taken should be reported before a model is loaded.
    with (
        listening(host, given.port) as (listener, port),
        TemporaryDirectory(prefix="gspool-serve-", ignore_cleanup_errors=True) as uploads,
    ):
        os.environ["GRADIO_TEMP_DIR"] = uploads
        index = open_index(given.index)
        lookup = Lookup(load_model(given.model, given.device), index, chosen_rerank(given), chosen_threshold(given))
        build_if_needed(index, print)
        print(f"index   {index}")
        names = [name.lower() for name in given.allow_host]
        if given.share:
            public = open_tunnel(port)
            print(f"public  {public}")
            names.append(public.partition("://")[2].partition("/")[0].lower())
        if (given.share or not is_loopback(host)) and token is None:
            print("others can reach this server without a password; --token SECRET sets one")
        # The tunnel's visitors come from this machine too.
        rate = RateLimit(DEFAULT_RATE, loopback=given.share) if given.rate is None else RateLimit(given.rate)
        rules = Rules(
            origins=tuple(names),
            token=token,
            rate=rate,
            seconds=given.timeout,
            folder_bytes=int(given.max_uploads_mb * 2**20),
        )
        # A server on all addresses, without given names, is asked for by any.
        hosts = ("*",) if host in ("0.0.0.0", "::") and not names else (*LOOPBACK, host, *names)
        app = create_app(lookup, Limits(int(given.max_mb * 2**20), given.max_pixels), hosts, rules)
        shown = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
        run_server(app, listener, f"http://{shown}:{port}", given.timeout)
