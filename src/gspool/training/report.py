"""report.html: one file with the figures of a run, its curves, retrieval examples and maps of the pooling weights."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gspool.files import write_atomic
from gspool.training import report_figures
from gspool.training.diagnosis import result_lines, threshold_in_words
from gspool.training.examples import Examples, read_examples
from gspool.training.metrics_log import read_metrics
from gspool.training.parsing import as_yaml
from gspool.training.run_folder import process_rank
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.training.fit import FitResult
    from gspool.training.run import Variant

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .9rem; border-bottom: 1px solid #ccc; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }} img {{ max-width: 100%; height: auto; }}
pre {{ background: #f4f4f4; padding: 1rem; overflow-x: auto; font-size: .85rem; }} h2 {{ margin-top: 2.5rem; }}
</style></head><body>
<h1>{title}</h1>
<p>{lead}</p>
<h2>Metrics on the test classes</h2>
{table}
{results}
<h2>Confused classes</h2>
{confused}
<h2>Curves</h2>
{curves}
<h2>Retrieval examples</h2>
<p>A query on the left and its nearest neighbours in order: green frames have the query's class, red ones do not.</p>
{neighbours}
<h2>Pooling weights</h2>
<p>The weights of the tokens in the pooling layer, bright where they are large. Equal weights (entropy 1) are average
pooling.</p>
{weights}
<h2>Settings</h2>
<pre>{config}</pre>
<p>Written by gspool {version}.</p>
</body></html>
"""


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
        picture = report_figures.weights(shown)
        weights.append(f"<h3>{caption}</h3>{picture or '<p>This layer has no weights.</p>'}")
    page = PAGE.format(
        title=html.escape(f"{config.model.pooling} on {config.data.name}"),
        lead=html.escape(
            f"{config.model.backbone}, {config.model.dim or 'its own'} dimensions, loss {config.loss.name}, "
            f"{figures.steps} steps of {config.data.batch_size} images. Tested on {figures.classes:,} classes"
            f"{'' if 'accuracy' in figures.metrics else ' that training never saw'}: {figures.queries:,} queries, "
            f"gallery of {figures.gallery:,}."
        ),
        table=_table(variants, results, rows),
        results=_results(figures),
        confused=_confused(figures, examples[0]),
        curves=report_figures.curves({variant.name: read_metrics(variant.folder) for variant in variants}),
        neighbours="\n".join(neighbours),
        weights="\n".join(weights),
        config=html.escape(as_yaml(config)),
        version=__version__,
    )
    write_atomic(path, page.encode())
    return path


def _table(variants: Sequence[Variant], results: Sequence[FitResult], rows: Mapping[str, Mapping[str, float]]) -> str:
    names = list(results[0].metrics)
    head = "".join(f"<th>{html.escape(name.upper())}</th>" for name in names)
    of_models = {
        variant.name: (str(result.best_step), _number(result.weights_entropy))
        for variant, result in zip(variants, results, strict=True)
    }
    bounds = {
        (variant.name, name): f"<br><small>{100 * low:.1f} – {100 * high:.1f}</small>"
        for variant, result in zip(variants, results, strict=True)
        for name, (low, high) in result.intervals.items()
    }
    body = "".join(
        f"<tr><td>{html.escape(row)}</td>"
        + "".join(f"<td>{100 * metrics[name]:.2f}{bounds.get((row, name), '')}</td>" for name in names)
        + "".join(f"<td>{cell}</td>" for cell in of_models.get(row, ("", "")))
        + "</tr>"
        for row, metrics in rows.items()
    )
    heading = f"<tr><th></th>{head}<th>best step</th><th>entropy of weights</th></tr>"
    return f"<table>{heading}{body}</table><p>Small: 95 % intervals, by drawing classes with replacement.</p>"


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


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
