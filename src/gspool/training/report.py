"""report.html: one file with the figures of a run, its curves, retrieval examples and maps of the pooling weights."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gspool.files import write_atomic
from gspool.training import report_figures
from gspool.training.embed import result_lines, threshold_in_words
from gspool.training.metrics_log import read_metrics
from gspool.training.parsing import as_yaml
from gspool.training.report_figures import Examples, read_examples
from gspool.training.run_folder import process_rank

if TYPE_CHECKING:
    from gspool.training.fit import FitResult
    from gspool.training.run import Variant


def write_report(
    path: Path,
    variants: Sequence[Variant],
    results: Sequence[FitResult],
    rows: Mapping[str, Mapping[str, float]],
) -> Path:
    """Write the report of finished runs into one file that needs no other; the first run is the model.

    Nothing is computed here: neighbours and weights are those that the evaluation of each run has kept. A run without
    them, or a process other than the first, leaves the file as it is. ``rows`` are the lines of its table.
    """
    examples = [read_examples(variant.folder) for variant in variants]
    if process_rank() > 0 or None in examples:
        return path
    config, figures = variants[0].config, results[0]
    neighbours, weights = [], []
    for variant, shown in zip(variants, examples, strict=True):
        assert shown is not None
        caption = html.escape(variant.name)
        neighbours.append(f"<h3>{caption}</h3>{report_figures.neighbours(shown)}")
        picture = "<p>This layer has no weights.</p>"
        if shown.weights is not None:
            picture = report_figures.weight_grid(list(shown.queries), {variant.name: shown.weights})
        weights.append(f"<h3>{caption}</h3>{picture}")
    page = report_figures.page(
        f"{config.model.pooling} on {config.data.name}",
        f"{config.model.backbone}, {config.model.dim} dimensions, loss {config.loss.name}, {figures.steps} steps of "
        f"{config.data.batch_size} images. Tested on {figures.classes:,} classes that training never saw: "
        f"{figures.queries:,} queries, gallery of {figures.gallery:,}.",
        {
            "Metrics on the test classes": _table(variants, results, rows) + _results(figures),
            "Confused classes": _confused(figures, examples[0]),
            "Curves": report_figures.curves({variant.name: read_metrics(variant.folder) for variant in variants}),
            "Retrieval examples": "<p>A query on the left and its nearest neighbours in order: green frames have the "
            "query's class, red ones do not.</p>\n" + "\n".join(neighbours),
            "Pooling weights": "<p>The weights of the tokens in the pooling layer, bright where they are large. Equal "
            "weights (entropy 1) are average pooling.</p>\n" + "\n".join(weights),
            "Settings": f"<pre>{html.escape(as_yaml(config))}</pre>",
        },
    )
    write_atomic(path, page)
    return path


def _table(variants: Sequence[Variant], results: Sequence[FitResult], rows: Mapping[str, Mapping[str, float]]) -> str:
    of_models = {variant.name: result for variant, result in zip(variants, results, strict=True)}
    lines = []
    for row, metrics in rows.items():
        result = of_models.get(row)
        cells = {"": html.escape(row)}
        for name in results[0].metrics:
            low, high = result.intervals.get(name, (None, None)) if result else (None, None)
            bounds = "" if low is None or high is None else f"<br><small>{100 * low:.1f} – {100 * high:.1f}</small>"
            cells[name.upper()] = f"{100 * metrics[name]:.2f}{bounds}"
        entropy = None if result is None else result.weights_entropy
        cells["best step"] = "" if result is None else str(result.best_step)
        cells["entropy of weights"] = "" if entropy is None else f"{entropy:.4f}"
        lines.append(cells)
    return f"{report_figures.table(lines)}<p>Small: 95 % intervals, by drawing classes with replacement.</p>\n"


def _results(result: FitResult) -> str:
    """Return intervals, caveats, the hardest classes and the threshold as paragraphs."""
    lines = result_lines({}, result.hardest, [], result.classes)  # the table has the intervals
    lines.append("classes.csv has the results of every class.")
    if result.threshold is not None:
        lines.append(f"threshold.json: {threshold_in_words(result.threshold)}")
    return "\n".join(f"<p>{html.escape(line)}</p>" for line in lines)


def _confused(result: FitResult, examples: Examples | None) -> str:
    """Return the most confused pairs of classes, each with its closest mistake."""
    if not result.confused:
        return "<p>The nearest neighbour of every query has its class.</p>"
    captions = [
        f"{each['class']} / {each['taken_for']}: {each['count']} of {each['queries']} queries"
        for each in result.confused
    ]
    if examples is None or examples.confused is None:
        return "\n".join(f"<p>{html.escape(caption)}</p>" for caption in captions)
    return (
        "<p>Queries of either class whose nearest neighbour is of the other; below, the closest of these mistakes.</p>"
        + report_figures.pairs(examples.confused, captions)
    )
