"""The outcome of a comparison: the winner as an ordinary model, a table, a plot, and a page with weight maps."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import load_file, save

from gspool import data
from gspool.evaluation.statistics import with_interval
from gspool.files import write_atomic
from gspool.training import report_figures
from gspool.training.compare_data import Tokens
from gspool.training.compare_runs import configured, head_name, main_metric
from gspool.training.heads import CLASSIFIER, as_embedder, build_head
from gspool.training.report_figures import spread_rows

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.models import Backbone
    from gspool.training.compare import CompareConfig

CONFIG, TABLE, HEADS, WINNER, REPORT = "config.yaml", "compare.json", "heads", "model", "report.html"
CLASSIFIER_FILE, CLASSES_FILE = "classifier.safetensors", "classes.json"
SHOWN_HEADS, SHOWN_PICTURES = 4, 6


class Words(NamedTuple):
    """What a task measures, and what it holds out for validation and test."""

    metric: str
    held_out: str


WORDS = {"embed": Words("MAP@R", "classes"), "classify": Words("top-1 accuracy", "pictures")}


def save_winner(
    config: CompareConfig,
    backbone: Backbone,
    folder: Path,
    lines: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    class_names: Sequence[str] = (),
) -> str:
    """Save the head with the best validation as a model that embeds images, and return its row.

    Of its folds and seeds, the one that gains most over the frozen feature on its own validation set is saved. A
    classifier goes beside the model: logits are ``weight @ embedding + bias``, in the order of the class names.
    """
    winner = lines[0]["row"]
    frozen = {run["asked"]["fold"]: run["found"] for run in runs if run["asked"]["row"].startswith("frozen")}

    def gain(run: Mapping[str, Any]) -> float:
        start = frozen.get(run["asked"]["fold"])
        base = 0.0 if start is None else main_metric(start["validation"])
        return main_metric(run["found"]["validation"]) - base

    asked = max((run for run in runs if run["asked"]["row"] == winner), key=gain)["asked"]
    state = load_file(folder / HEADS / f"{head_name(asked)}.safetensors")
    model = as_embedder(
        backbone,
        config.backbone,
        config.backbone_options,
        asked["layer"],
        config.dim or backbone.channels,
        asked["options"],
        state,
    )
    metrics = next(run["found"]["test"] for run in runs if run["asked"] == asked)
    model.save_pretrained(folder / WINNER, metrics={name: value / 100 for name, value in metrics.items()})
    if config.task == "classify":
        own = {name.removeprefix(CLASSIFIER): state[name] for name in state if name.startswith(CLASSIFIER)}
        write_atomic(folder / WINNER / CLASSIFIER_FILE, save(own))
        write_atomic(folder / WINNER / CLASSES_FILE, json.dumps(list(class_names), indent=1).encode())
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
    lines: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    tokens: Tokens,
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
            + _weight_maps(config, folder, lines, runs, tokens),
        },
    )
    write_atomic(folder / REPORT, page)
    return folder / REPORT


@torch.no_grad()
def _weight_maps(
    config: CompareConfig,
    folder: Path,
    lines: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    tokens: Tokens,
) -> str:
    layout, test = tokens.test.layout, tokens.test.images
    places = spread_rows(test.labels, torch.arange(len(test)), SHOWN_PICTURES)
    rows = tokens.test.rows(places)
    maps: dict[str, Tensor] = {}
    for line in lines:
        asked = next(run["asked"] for run in runs if run["asked"]["row"] == line["row"])
        head = configured(config, asked["head"], asked["seed"]).head
        model = build_head(asked["layer"], layout, config.dim, asked["options"], head, asked["seed"]).eval()
        state = load_file(folder / HEADS / f"{head_name(asked)}.safetensors")
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
    crop = data.evaluation_transform(size, resize=size)
    return report_figures.weight_grid([crop(test.images[int(place)]) for place in places], maps)
