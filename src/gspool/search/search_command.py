"""`gspool search`: pictures to their nearest neighbours in a corpus."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveInt

from gspool.files import write_atomic
from gspool.terminal.output import check_output, shown
from gspool.terminal.parser import Cosine, Share, TeachingParser
from gspool.terminal.status import WrongArgumentsError

if TYPE_CHECKING:
    from gspool.models import Embedder
    from gspool.search.index import Hit, Index
    from gspool.search.index.rerank import Rerank
    from gspool.search.query import Answer

PAGE = """
Find the nearest neighbours of pictures among the vectors that gspool embed wrote.

    gspool search runs/NAME query.jpg --index vectors.lance
    gspool search runs/NAME query.jpg --index vectors.lance --picture found.png     with the pooling weights on each
    gspool search runs/NAME queries/ --index vectors.lance --k 5 --json answers.jsonl       many queries, one line each
    gspool search runs/NAME query.jpg --index vectors.lance --label ant bee         only neighbours with these labels
    gspool search runs/NAME query.jpg --index vectors.lance --where "width >= 640 AND label IS NOT NULL"
    gspool search runs/NAME queries/ --index vectors.lance --check                  the recall on your own queries
    gspool search runs/NAME query.jpg --index vectors.lance --expand 5              re-ranked by query expansion
    gspool search --duplicates --index vectors.lance --similarity 0.97              near-identical pictures

Scores are cosines. A query that is in the corpus is not embedded again unless its file has changed. With a threshold,
--threshold or the one calibrated for the model (threshold.json in its folder), neighbours are marked as match or not.
Search is exact below 100,000 vectors. Above, it uses an approximate index, which is built on first use and tuned to
--recall on vectors of the corpus. The printed recall was measured on other vectors of the corpus: for queries unlike
the corpus it is lower, and --check measures it on yours. --exact does not use the index.
"""
USAGE = """gspool search MODEL QUERY... --index FILE [--k N] [--picture FILE] [--json FILE] [--OPTION VALUE ...]
       gspool search --duplicates --index FILE [--similarity COSINE] [--json FILE]"""
# More queries than this take long to search exactly, and say no more about the recall.
MOST_CHECKED = 200
# What does nothing to --duplicates.
OF_QUERIES = (
    *("k", "label", "where", "others", "exact", "check", "recall", "expand", "alpha", "whiten", "threshold"),
    *("picture", "device"),
)


def search_command(arguments: Sequence[str]) -> None:
    """Search, and show the neighbours in the terminal, as JSON, or as a picture; an error if no query can be read."""
    parser = _parser()
    given = parser.parse_args(list(arguments))
    from gspool.search.explanation.figure import KINDS, MOST_QUERIES, draw_answers
    from gspool.search.index import label_filter, open_index
    from gspool.search.model import load_model

    if given.duplicates and given.queries:
        raise WrongArgumentsError("--duplicates compares the corpus with itself and takes no queries")
    if not given.duplicates and not given.queries:
        raise WrongArgumentsError("give a model and pictures to search with: gspool search MODEL QUERY... --index FILE")
    if given.duplicates:
        parser.refuse(given, "is about queries, and --duplicates has none", *OF_QUERIES)
    else:
        parser.refuse(given, "is about --duplicates", "similarity")
    given.picture = check_output(given.picture, "--picture", KINDS)
    given.json = check_output(given.json, "--json", (".json", ".jsonl"))
    index = open_index(given.index)
    if given.duplicates:
        _duplicates(index, given)
        return
    model = load_model(given.model, given.device)
    index.check_model(model)
    conditions = [f"({given.where})"] if given.where else []
    conditions += [label_filter(given.label)] if given.label else []
    if not given.exact:
        build_if_needed(index, _aside, given.recall)
    _aside(str(index) if not given.exact else f"{index.path.name}: {len(index):,} vectors, exact (--exact)")
    drawn: list[Answer] = []
    count = unread = labelled = right = 0
    answers = _answers(model, index, given, " AND ".join(conditions) or None)
    # Before a file is opened: a wrong condition should leave the answers that it holds.
    first = next(answers)
    with _output(given, index, chosen_threshold(given)) as put:
        for answer in itertools.chain([first], answers):
            put(answer)
            count += 1
            unread += answer.problem is not None
            if answer.label is not None and answer.hits and answer.hits[0].label is not None:
                labelled, right = labelled + 1, right + (answer.hits[0].label == answer.label)
            if len(drawn) < MOST_QUERIES and answer.problem is None:
                drawn.append(answer)
    line = f"{count:,} {'query' if count == 1 else 'queries'}" + (f", {unread:,} could not be read" if unread else "")
    _aside(line + (f"; the nearest has the query's label for {right:,} of {labelled:,}" if labelled else ""))
    if unread == count:
        raise ValueError("no query could be read")
    if given.picture:
        _aside(f"picture {draw_answers(model, drawn, given.picture)}")


def _parser() -> TeachingParser:
    parser = TeachingParser("gspool search", PAGE, USAGE)
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", default=None, help="The model that embedded the corpus.")
    # The default makes them optional: --duplicates takes none.
    add("queries", metavar="QUERY", nargs="*", default=[], help="Files, folders, globs in quotes, CSV lists.")
    add("--index", type=str, required=True, metavar="FILE", help="What gspool embed wrote.")
    add("--k", type=PositiveInt, default=10, help="How many neighbours.")
    add("--label", type=str, nargs="+", default=None, help="Only neighbours with one of these labels.")
    add("--where", type=str | None, default=None, help="Only neighbours that fulfil this SQL.")
    add("--others", action="store_true", help="Leave out the query's own file, if it is in the corpus.")
    add("--exact", action="store_true", help="Do not use the approximate index.")
    add("--check", action="store_true", help="Print the recall of the index on these queries.")
    add("--recall", type=Share, default=0.98, help="Of an index that is built now.")
    add_ranking_arguments(parser)
    add("--duplicates", action="store_true", help="List groups of near-identical pictures instead.")
    add("--similarity", type=Share, default=0.95, help="The least cosine of duplicates.")
    add("--picture", type=str | None, default=None, metavar="FILE", help="Draw them: .png .pdf .svg.")
    to_json = "Write .json, or .jsonl with one line per query or group; - for the terminal."
    add("--json", type=str | None, default=None, metavar="FILE", help=to_json)
    add("--device", type=str | None, default=None, help="cpu, cuda ...; a GPU if there is one.")
    return parser


def add_ranking_arguments(parser: TeachingParser) -> None:
    """Add the options of re-ranking and of matches, which `gspool serve` has too."""
    add = parser.add_argument
    add("--expand", type=NonNegativeInt, default=0, help="Query expansion: average the query with N neighbours.")
    add("--alpha", type=NonNegativeFloat, default=3.0, help="Weigh them by cosine to this power; 0 is the mean.")
    add("--whiten", type=NonNegativeInt, default=0, help="Order neighbours after PCA whitening of N directions.")
    add("--threshold", type=Cosine | None, default=None, help="The least cosine of a match.")


def chosen_rerank(given: Any) -> Rerank | None:
    """Return the re-ranking that options ask for, if any."""
    from gspool.search.index.rerank import Rerank

    return Rerank(given.expand, given.alpha, given.whiten) if given.expand or given.whiten else None


def chosen_threshold(given: Any) -> float | None:
    """Return the least cosine of a match; one that was calibrated holds for plain cosines only."""
    from gspool.search.model import match_threshold

    if given.threshold is not None or chosen_rerank(given) is not None:
        return given.threshold
    return match_threshold(given.model)


def build_if_needed(index: Index, tell: Callable[[str], None], recall: float = 0.98) -> None:
    """Build an approximate index over many vectors; where that fails, say so and go on with the table as it is."""
    if index.needs_approximation:
        try:
            index.build(recall, tell=tell)
        except ValueError as error:
            tell(f"{error}. The search goes on without")


def _answers(model: Embedder, index: Index, given: Any, where: str | None) -> Iterator[Answer]:
    """Search; with ``--check`` also search exactly, and print the recall at the end."""
    from gspool.search.index.approximate import mean_recall
    from gspool.search.query import search_images

    options = {"where": where, "leave_out_itself": given.others, "rerank": chosen_rerank(given)}
    search = partial(search_images, model, index, given.queries, given.k, **options)
    exact = itertools.islice(search(exact=True), MOST_CHECKED if given.check else 0)
    compared: list[tuple[list[Hit], list[Hit]]] = []
    for answer in search(exact=given.exact):
        right = next(exact, None)
        if right is not None and right.hits:
            compared.append((answer.hits, right.hits))
        yield answer
    if compared:
        count = "1 query" if len(compared) == 1 else f"{len(compared)} queries"
        recall = mean_recall(*zip(*compared, strict=True))
        _aside(f"recall@{given.k} {recall:.4f} on {count} of yours, against exact search")


def _duplicates(index: Index, given: Any) -> None:
    groups = index.duplicates(given.similarity)
    records = [[hit._asdict() for hit in group] for group in groups]
    if given.json and _is_lines(given.json):
        _write(given.json, "".join(json.dumps(record) + "\n" for record in records))
    elif given.json:
        about = {"index": str(index.path), "similarity": given.similarity}
        _write(given.json, json.dumps({**about, "groups": records}, indent=1) + "\n")
    else:
        for number, group in enumerate(groups, start=1):
            print(f"group {number}: {len(group):,} pictures")
            for hit in group:
                print(f"      {hit.score:8.4f}  {shown(hit.label or '-'):16s} {shown(hit.path)}")
    extra = sum(len(group) - 1 for group in groups)
    _aside(
        f"{len(groups):,} groups of near-identical pictures among {len(index):,} (cosine >= {given.similarity:g}); "
        f"{extra:,} could be removed"
    )


@contextmanager
def _output(given: Any, index: Index, threshold: float | None) -> Iterator[Callable[[Answer], object]]:
    """Yield the function that prints or writes an answer; JSON Lines are written as they come."""
    if not given.json:
        yield partial(_show, threshold=threshold)
    elif _is_lines(given.json):
        Path(given.json).parent.mkdir(parents=True, exist_ok=True)
        with open(given.json, "w", encoding="utf-8") as lines:
            yield lambda answer: lines.write(json.dumps(_record(answer, threshold)) + "\n")
    else:
        answers: list[dict[str, Any]] = []
        yield lambda answer: answers.append(_record(answer, threshold))
        way = "exact" if given.exact or index.approximation is None else index.approximation._asdict()
        about = {"index": str(index.path), "vectors": len(index), **index.settings._asdict()}
        _write(given.json, json.dumps({**about, "k": given.k, "search": way, "answers": answers}, indent=1) + "\n")


def _is_lines(name: str) -> bool:
    return name.lower().endswith(".jsonl")


def _write(name: str, text: str) -> None:
    if name == "-":
        print(text, end="")
    else:
        write_atomic(Path(name), text.encode())


def _record(answer: Answer, threshold: float | None) -> dict[str, Any]:
    record = {**answer._asdict(), "hits": [hit._asdict() for hit in answer.hits]}
    if threshold is not None:
        for hit in record["hits"]:
            hit["match"] = hit["score"] >= threshold
    if answer.problem is None:
        del record["problem"]
    return record


def _show(answer: Answer, threshold: float | None) -> None:
    print(shown(answer.query + (f" [{answer.label}]" if answer.label else "")))
    if answer.problem is not None:
        print(f"      cannot be read: {shown(answer.problem)}")
    for rank, hit in enumerate(answer.hits, start=1):
        match = "" if threshold is None else "match     " if hit.score >= threshold else "no match  "
        print(f"  {rank:3d} {hit.score:8.4f}  {match}{shown(hit.label or '-'):16s} {shown(hit.path)}")


def _aside(line: str) -> None:
    """Print a line that is not an answer to stderr, so that programs can read stdout."""
    print(line, file=sys.stderr)
