"""`gspool search`: pictures to their nearest neighbours in a corpus."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspool.terminal.output import check_file_writable
from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import WrongArgumentsError, checking_arguments, refuse_below

if TYPE_CHECKING:
    from gspool.models import Embedder
    from gspool.search.index.index import Hit, Index
    from gspool.search.query import Answer

PAGE = """
Find the nearest neighbours of pictures among the vectors that gspool embed wrote.

    gspool search runs/NAME query.jpg --index vectors.lance
    gspool search runs/NAME query.jpg --index vectors.lance --picture found.png     with the pooling weights on each
    gspool search runs/NAME queries/ --index vectors.lance --k 5 --json answers.jsonl       many queries, one line each
    gspool search runs/NAME query.jpg --index vectors.lance --label ant bee         only neighbours with these labels
    gspool search runs/NAME query.jpg --index vectors.lance --where "width >= 640 AND label IS NOT NULL"
    gspool search runs/NAME queries/ --index vectors.lance --check                  the recall on your own queries

Scores are cosines. Search is exact below 100,000 vectors. Above, it uses an approximate index, which is built on first
use and tuned to --recall on vectors of the corpus. The printed recall was measured on other vectors of the corpus: for
queries unlike the corpus it is lower, and --check measures it on yours. --exact does not use the index.
"""
USAGE = "gspool search MODEL QUERY... --index FILE [--k N] [--picture FILE] [--json FILE] [--OPTION VALUE ...]"
# More queries than this take long to search exactly, and say no more about the recall.
MOST_CHECKED = 200


def search_command(arguments: Sequence[str]) -> None:
    """Search, and show the neighbours in the terminal, as JSON, or as a picture.

    Raises:
        WrongArgumentsError: if an option has an impossible value.
        ValueError: if no query could be read, and as `search_images`.
    """
    given = _parser().parse_args(list(arguments))
    from gspool.search.index.index import label_filter, needs_approximation, open_index
    from gspool.search.model_source import load_model

    _check(given)
    index = open_index(given["index"])
    model = load_model(given["model"], given["device"])
    index.check_model(model)
    conditions = [f"({given['where']})"] if given["where"] else []
    conditions += [label_filter(given["label"])] if given["label"] else []
    where = " AND ".join(conditions) or None
    if needs_approximation(index) and not given["exact"] and index.path.suffix == ".lance":
        index.build(given["recall"], tell=_aside)
    _aside(str(index) if not given["exact"] else f"{index.path.name}: {len(index):,} vectors, exact (--exact)")
    kept = _write(_answers(model, index, given, where), index, given)
    if given["picture"]:
        from gspool.search.picture import draw_answers

        _aside(f"picture {draw_answers(model, kept, given['picture'])}")


def _parser() -> TeachingParser:
    parser = TeachingParser("gspool search", PAGE, USAGE)
    parser.add_argument("model", metavar="MODEL", help="The model that embedded the corpus.")
    parser.add_argument("queries", metavar="QUERY", nargs="+", help="Files, folders, globs in quotes, CSV lists.")
    parser.add_argument("--index", type=str, required=True, metavar="FILE", help="What gspool embed wrote.")
    parser.add_argument("--k", type=int, default=10, help="How many neighbours.")
    parser.add_argument("--label", type=str, nargs="+", default=None, help="Only neighbours with one of these labels.")
    parser.add_argument("--where", type=str | None, default=None, help="Only neighbours that fulfil this SQL.")
    parser.add_argument("--others", action="store_true", help="Leave out the query's own file, if it is in the corpus.")
    parser.add_argument("--exact", action="store_true", help="Do not use the approximate index.")
    parser.add_argument("--check", action="store_true", help="Print the recall of the index on these queries.")
    parser.add_argument("--recall", type=float, default=0.98, help="Of an index that is built now.")
    parser.add_argument("--picture", type=str | None, default=None, metavar="FILE", help="Draw them: .png .pdf .svg.")
    parser.add_argument(
        "--json",
        type=str | None,
        default=None,
        metavar="FILE",
        help="Write .json, or .jsonl with one line per query; - for the terminal.",
    )
    parser.add_argument("--device", type=str | None, default=None, help="cpu, cuda ...; a GPU if there is one.")
    return parser


def _check(given: Any) -> None:
    """Refuse impossible options, and files that cannot be written, before a model is loaded."""
    from gspool.search.index.approximate import check_recall
    from gspool.search.picture import KINDS

    refuse_below(1, k=given["k"])
    with checking_arguments():
        check_recall(given["recall"])
    if given["picture"] and not given["picture"].lower().endswith(KINDS):
        raise WrongArgumentsError(f"--picture is written to a {', '.join(KINDS)} file, got {given['picture']}")
    if given["json"] and given["json"] != "-" and not given["json"].endswith((".json", ".jsonl")):
        raise WrongArgumentsError(f"--json is a .json or .jsonl file, or - for the terminal, got {given['json']}")
    for name in ("picture", "json"):
        if given[name] and given[name] != "-":
            check_file_writable(given[name], f"--{name}")


def _answers(model: Embedder, index: Index, given: Any, where: str | None) -> Iterator[Answer]:
    """Search; with ``--check`` also search exactly, and print the recall at the end."""
    from gspool.search.index.approximate import mean_recall
    from gspool.search.query import search_images

    settings: dict[str, Any] = {"k": given["k"], "where": where, "leave_out_itself": given["others"]}
    exact = search_images(model, index, given["queries"], exact=True, **settings) if given["check"] else iter(())
    found: list[Sequence[Hit]] = []
    truth: list[Sequence[Hit]] = []
    for answer in search_images(model, index, given["queries"], exact=given["exact"], **settings):
        if given["check"] and len(found) < MOST_CHECKED:
            right = next(exact).hits
            if right:
                found.append(answer.hits)
                truth.append(right)
        yield answer
    if found:
        count = "1 query" if len(found) == 1 else f"{len(found)} queries"
        _aside(f"recall@{given['k']} {mean_recall(found, truth):.4f} on {count} of yours, against exact search")


def _write(answers: Iterator[Answer], index: Index, given: Any) -> list[Answer]:
    """Print or write every answer as it comes; return those that a picture can show.

    Raises:
        ValueError: if none of the queries could be read.
    """
    from gspool.search.picture import MOST_QUERIES

    kept: list[Answer] = []
    records: list[dict[str, Any]] = []
    count = unread = labelled = right = 0
    with ExitStack() as files:
        lines = None
        if given["json"] and given["json"].endswith(".jsonl"):
            Path(given["json"]).parent.mkdir(parents=True, exist_ok=True)
            lines = files.enter_context(Path(given["json"]).open("w", encoding="utf-8"))
        for answer in answers:
            count += 1
            unread += answer.problem is not None
            if answer.label is not None and answer.hits and answer.hits[0].label is not None:
                labelled, right = labelled + 1, right + (answer.hits[0].label == answer.label)
            if lines is not None:
                lines.write(json.dumps(_record(answer)) + "\n")
            elif given["json"]:
                records.append(_record(answer))
            else:
                _show(answer)
            if len(kept) < MOST_QUERIES and answer.problem is None:
                kept.append(answer)
    if records:
        _write_json(given["json"], {**_described(index, given), "answers": records})
    line = f"{count:,} {'query' if count == 1 else 'queries'}" + (f", {unread:,} could not be read" if unread else "")
    line += f"; the nearest has the query's label for {right:,} of {labelled:,}" if labelled else ""
    _aside(line)
    if unread == count:
        raise ValueError("no query could be read")
    return kept


def _record(answer: Answer) -> dict[str, Any]:
    record = {**answer._asdict(), "hits": [hit._asdict() for hit in answer.hits]}
    return record if answer.problem is not None else {key: value for key, value in record.items() if key != "problem"}


def _described(index: Index, given: Any) -> dict[str, Any]:
    way = "exact" if given["exact"] or index.approximation is None else index.approximation._asdict()
    return {"index": str(index.path), "vectors": len(index), **index.settings._asdict(), "k": given["k"], "search": way}


def _write_json(file: str, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1)
    if file == "-":
        print(text)
        return
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(text + "\n", encoding="utf-8")


def _show(answer: Answer) -> None:
    print(answer.query + (f" [{answer.label}]" if answer.label else ""))
    if answer.problem is not None:
        print(f"      cannot be read: {answer.problem}")
    for rank, hit in enumerate(answer.hits, start=1):
        print(f"  {rank:3d} {hit.score:8.4f}  {hit.label or '-':16s} {hit.path}")


def _aside(line: str) -> None:
    """Print a line that is not an answer to stderr, so that programs can read stdout."""
    print(line, file=sys.stderr)
