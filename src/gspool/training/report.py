"""report.html of a training run and of a comparison, and the winner of a comparison as an ordinary model."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import load_file

from gspool import data
from gspool.evaluation.statistics import with_interval
from gspool.files import write_atomic
from gspool.training import report_figures
from gspool.training.compare_data import Tokens
from gspool.training.compare_runs import configured, head_name, main_metric
from gspool.training.embed import result_lines, threshold_in_words, write_classifier
from gspool.training.heads import CLASSIFIER, as_embedder, build_head
from gspool.training.metrics_log import read_metrics
from gspool.training.parsing import as_yaml
from gspool.training.report_figures import Examples, read_examples, spread_rows
from gspool.training.run_folder import process_rank

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.models import Backbone, Pixels
    from gspool.training.compare import CompareConfig
    from gspool.training.fit import FitResult
    from gspool.training.run import Variant

CONFIG, TABLE, HEADS, WINNER, REPORT = "config.yaml", "compare.json", "heads", "model", "report.html"
SHOWN_HEADS, SHOWN_PICTURES = 4, 6


class Words(NamedTuple):
    """What a task measures, and what it holds out for validation and test."""

    metric: str
    held_out: str


WORDS = {"embed": Words("MAP@R", "classes"), "classify": Words("top-1 accuracy", "pictures")}


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
        f"{config.model.backbone}, {f'dim {config.model.dim}, ' if config.model.dim else ''}loss {config.loss.name}, "
        f"{figures.steps:,} steps. Tested on {figures.classes:,} classes"
        f"{'' if 'accuracy' in figures.metrics else ' that training never saw'}: {figures.queries:,} queries, "
        f"gallery of {figures.gallery:,}.",
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
    if not result.queries:
        return "<p>No query has another picture of its class.</p>"
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


def save_winner(
    config: CompareConfig,
    backbone: Backbone,
    folder: Path,
    heads: Path,
    lines: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    class_names: Sequence[str] = (),
) -> str:
    """Save the head with the best validation as a model that embeds images, and return its row.

    ``heads`` is the folder of the trained heads. Of the folds and seeds of that row, the one that gains most over the
    frozen feature on its own validation set is saved. A classifier goes beside the model: logits are
    ``weight @ embedding + bias``, in the order of the class names.
    """
    winner = lines[0]["row"]
    frozen = {run["asked"]["fold"]: run["found"] for run in runs if run["asked"]["row"].startswith("frozen")}

    def gain(run: Mapping[str, Any]) -> float:
        start = frozen.get(run["asked"]["fold"])
        base = 0.0 if start is None else main_metric(start["validation"])
        return main_metric(run["found"]["validation"]) - base

    chosen = max((run for run in runs if run["asked"]["row"] == winner), key=gain)
    asked, metrics = chosen["asked"], chosen["found"]["test"]
    state = load_file(heads / f"{head_name(asked)}.safetensors")
    model = as_embedder(
        backbone,
        config.backbone,
        config.backbone_options,
        asked["layer"],
        config.dim or backbone.channels,
        asked["options"],
        state,
    )
    model.save_pretrained(folder / WINNER, metrics={name: value / 100 for name, value in metrics.items()})
    if config.task == "classify":
        own = {name.removeprefix(CLASSIFIER): state[name] for name in state if name.startswith(CLASSIFIER)}
        write_classifier(folder / WINNER, own, class_names)
    return str(winner)


def table_rows(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Format the lines of a comparison for a table."""
    return [
        {
            "head": line["row"],
            "validation": f"{line['validation']:.2f}",
            "test": f"{line['test']:.2f}" + (f" ± {line['std']:.2f}" if line["runs"] > 1 else ""),
            **({} if line["p@1"] is None else {"P@1": f"{line['p@1']:.1f}"}),
            "against gap": with_interval(line["against_gap"]),
            "against the best": with_interval(line["against_best"]),
            "entropy": "" if line["entropy"] is None else f"{line['entropy']:.3f}",
            "parameters": f"{line['parameters']:,}",
            "seconds": f"{line['seconds']:.1f}",
        }
        for line in lines
    ]


def write_compare_report(
    config: CompareConfig,
    folder: Path,
    heads: Path,
    lines: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    tokens: Tokens,
    pixels: Pixels,
) -> Path:
    """Write report.html: the table, a plot, and weight maps of the best heads on the same pictures."""
    test, words = tokens.test.images, WORDS[config.task]
    folds = len({run["asked"]["fold"] for run in runs})
    rows = [{name: html.escape(cell) for name, cell in row.items()} for row in table_rows(lines)]
    points = [(line["row"], line["validation"], line["test"]) for line in lines]
    page = report_figures.page(
        f"Heads on {config.backbone}, {config.data.name}",
        f"{lines[0]['row']} is best on the validation {words.held_out}: test {words.metric} {lines[0]['test']:.2f}. "
        f"Tested on {len(test):,} pictures of {test.num_classes:,} classes; no head was trained on these "
        f"{words.held_out}. {folds} of {config.folds} folds, seeds {config.seeds}. The saved model is in the folder "
        f"{WINNER}.",
        {
            "Results": f"{report_figures.table(rows)}<p>{words.metric} in percent. Rows are sorted by the validation "
            f"{words.held_out}, which chose the settings; the test {words.held_out} took no part in any choice. "
            "Differences are means over folds and seeds with 95 % intervals over the pairs.</p>",
            "Validation and test": report_figures.bars(points, words.metric, words.held_out),
            "Where the heads look": "<p>Weights of the tokens on test pictures, bright where they are large, one scale "
            "for all. Heads that weigh all tokens alike are left out.</p>\n"
            + _weight_maps(config, heads, lines, runs, tokens, pixels),
        },
    )
    write_atomic(folder / REPORT, page)
    return folder / REPORT


@torch.no_grad()
def _weight_maps(
    config: CompareConfig,
    heads: Path,
    lines: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    tokens: Tokens,
    pixels: Pixels,
) -> str:
    layout, test = tokens.test.layout, tokens.test.images
    places = spread_rows(test.labels, torch.arange(len(test)), SHOWN_PICTURES)
    rows = tokens.test.rows(places)
    maps: dict[str, Tensor] = {}
    for line in lines:
        asked = next(run["asked"] for run in runs if run["asked"]["row"] == line["row"])
        head = configured(config, asked["head"], asked["seed"]).head
        model = build_head(asked["layer"], layout, config.dim, asked["options"], head, asked["seed"]).eval()
        state = load_file(heads / f"{head_name(asked)}.safetensors")
        model.load_state_dict({name: state[name] for name in state if not name.startswith(CLASSIFIER)})
        embedded = model.embed(rows.cpu())
        alike = embedded.weights is None or bool((embedded.weights.amax(1) - embedded.weights.amin(1) < 1e-6).all())
        if not alike and embedded.weights is not None and embedded.grid is not None:
            maps[line["row"]] = embedded.weights.float().unflatten(1, embedded.grid)
        if len(maps) == SHOWN_HEADS:
            break
    if not maps:
        return "<p>None of the heads has weights on a grid that differ.</p>"
    size = 2 * max(layout.grid or (1, 1)) * 8
    # The part of the picture that the tokens are of.
    crop = data.evaluation_transform(size, resize=round(size * pixels.resize / pixels.crop[0]))
    return report_figures.weight_grid([crop(test.images[int(place)]) for place in places], maps)
