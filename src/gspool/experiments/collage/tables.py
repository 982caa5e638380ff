"""The section about Cifar Collage: tables beside the paper's figures, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspool.experiments.certificate import read_result
from gspool.experiments.collage.bars import PICTURE
from gspool.experiments.collage.rows import BACKBONES, DISTILLED, FINE_TUNED, ROWS, find_row
from gspool.experiments.collage.search import LOSSES
from gspool.experiments.collage.search_text import LOSS_NAMES, search_table, search_text
from gspool.experiments.collage.study import SEEDS
from gspool.experiments.experiment import NOT_RUN, mean_and_deviation
from gspool.experiments.report import caption, table

TUNED = ("GAP", "DeLF", "GeMean+GSP", "GSP", "GSP+ZSR")
BY_SUB_CLASS = ("GAP", "GSP", "GSP+ZSR")
SUMS = ("GMP+GSP", "GeMean+GSP")
TABLES = {
    "tuned": "the best settings",
    "frozen": "the pooling table",
    "distilled": "the objects alone",
    "fine_tuned": "the fine-tuned backbone",
}


def render(results: Path) -> str:
    """Write the whole section."""
    path = results / "collage.json"
    if not path.is_file():
        return NOT_RUN
    record = read_result(path)
    value = record["value"]
    accuracy = "; ".join(f"{each['flavour']} {100 * each['accuracy']:.1f} %" for each in value["backbones"])
    parts = [
        "Collages of 2 x 2 tiles of 32 pixels: an object of a labelled super-class and three images of shared ones. "
        f"Backbone: ResNet20 trained to classify CIFAR-100 (right on its test images: {accuracy}). Settings of Supp. "
        "2.2: Adam 1e-3, halved after 5 passes without a better validation, m = 128, mu = 0.2, epsilon = 10, lambda = "
        f"0.5; at most {value['epochs']} passes, and none after {value['patience']} in vain. MAP@R in percent on the "
        "test classes at the best epoch by validation, mean ± std over the seeds.",
        f"**Not whole yet.** Missing: {left}; the same command makes them." if (left := unfinished(results)) else "",
        "### Frozen backbone, the pooling table",
        _verdict(value["frozen"]),
        _side_by_side(value["frozen"], [row.name for row in ROWS]),
        f"![Every layer with its deviation over seeds, and the paper's figures](images/{PICTURE})",
        _by_sub_class(value["frozen"]),
        caption("collage", record),
        "*On the object* is the part of the weight in the object's quarter (a quarter of it for average pooling), "
        "*entropy* that of the weights against equal ones.",
        *_attention(value.get("attention")),
        "### Which unstated setting matters",
        search_text(value),
        search_table(value["search"]),
        "### With the best settings by validation",
        "GAP and GSP with their own best settings of the search above; DeLF and GeMean+GSP, which are ahead of GSP at "
        "the paper's settings, with those of GSP as far as they have them.",
        "\n".join(_verdict_with(value["tuned"], backbone) for backbone in BACKBONES.values()),
        _side_by_side(value["tuned"], [f"{name}{backbone}" for backbone in BACKBONES.values() for name in TUNED]),
        "### Distilled: the objects alone",
        "The same objects without backgrounds, 32 x 32 pixels: what pooling could reach at best.",
        _side_by_side(value["distilled"], DISTILLED, paper=False),
        "### Fine-tuned backbone",
        "The backbone learns too (batch norm frozen, lr 1e-4), on collages that are stitched anew whenever they are "
        f"seen, at most {value['fine_tuned_epochs']} passes.",
        _side_by_side(value["fine_tuned"], FINE_TUNED, paper=False),
    ]
    return "\n\n".join(part for part in parts if part)


def unfinished(results: Path) -> str:
    """Count the trainings that are missing, table by table; empty where none is."""
    left = read_result(results / "collage.json")["value"]["unfinished"]
    return ", ".join(f"{count} trainings of {TABLES[name]}" for name, count in left.items() if count)


def _by_sub_class(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what the figures are where only images of the same class of CIFAR-100 count as right."""
    known = {(row["row"], row["loss"]): row.get("by_sub_class") for row in rows}
    said = [
        f"{shown} {', '.join(f'{name} {known[name, loss]:.2f}' for name in BY_SUB_CLASS if known.get((name, loss)))}"
        for loss, shown in LOSS_NAMES.items()
        if known.get(("GSP", loss))
    ]
    if not said:
        return ""
    return (
        "The labels are the 16 super-classes, two classes of CIFAR-100 each on test. Counting only images of the same "
        f"one of these 32 as right: {'; '.join(said)}."
    )


def _attention(known: Mapping[str, Any] | None) -> list[str]:
    """Show where GSP looks, and say what it was trained on."""
    if known is None:
        return []
    return [
        "![Weights of the pooling over collages of training and test classes](images/collage.png)",
        "Above collages, the object framed; below them the weights of GSP+ZSR (PNCA, seed 0, frozen backbone). Four "
        f"collages of training classes, then four of test classes. Trained on {known['collages']:,} collages, "
        f"{known['steps']:,} steps, {known['device']}.",
    ]


def _side_by_side(rows: Sequence[Mapping[str, Any]], names: Sequence[str], paper: bool = True) -> str:
    """Put the two losses beside each other, the best in bold; what has not been run says so.

    ``paper`` shows the paper's figures, which are those of a frozen backbone on collages.
    """
    if not rows:
        return NOT_RUN
    best = {loss: max((row["map@r"] for row in rows if row["loss"] == loss), default=None) for loss in LOSSES}
    found = {(row["row"], row["loss"]): row for row in rows}
    lines = []
    for name in dict.fromkeys(names):
        line = {"layer": name}
        for loss, shown in LOSS_NAMES.items():
            row, theirs = found.get((name, loss)), _paper(name)
            figure = "not run" if row is None else _figure_text(row)
            line[shown] = f"**{figure}**" if row is not None and row["map@r"] == best[loss] else figure
            if paper:
                line[f"{shown}, paper"] = "" if theirs is None else f"{theirs[loss]:.2f}"
            line[f"{shown}, on the object"] = _number(row, "on_object", ".2f")
            line[f"{shown}, entropy"] = _number(row, "entropy", ".3f")
        lines.append(line)
    return table(lines, "g")


def _paper(name: str) -> Mapping[str, float] | None:
    """Give the paper's figures of a row; a tuned row adds the backbone to the name of its layer."""
    known = [row.name for row in ROWS]
    return find_row(name if name in known else name.partition(",")[0]).paper


def _figure_text(row: Mapping[str, Any]) -> str:
    seeds = len(row["by_seed"])
    few = f" ({seeds} seeds)" if 1 < seeds < len(SEEDS) else ""
    return mean_and_deviation(row["map@r"], row["std"]) + few


def _number(row: Mapping[str, Any] | None, name: str, style: str) -> str:
    return "" if row is None or row[name] is None else format(row[name], style)


def _with_a_sum(rows: Sequence[Mapping[str, Any]], loss: str, figure: float) -> str:
    """Say where another layer and GSP together are ahead of GSP alone; the paper's table has no such row."""
    ahead = [(name, value) for name in SUMS if (value := _figure(rows, name, loss)) is not None and value > figure]
    return "".join(f" {name}, which the paper's table does not have, reaches {value:.2f}." for name, value in ahead)


def _figure(rows: Sequence[Mapping[str, Any]], name: str, loss: str) -> float | None:
    return next((row["map@r"] for row in rows if (row["row"], row["loss"]) == (name, loss)), None)


def _verdict_with(rows: Sequence[Mapping[str, Any]], backbone: str) -> str:
    """Say the same of the tuned rows of one backbone, whose names end in it."""
    names = {f"{name}{backbone}": name for name in TUNED}
    return _verdict([{**row, "row": names[row["row"]]} for row in rows if row["row"] in names], backbone)


def _verdict(rows: Sequence[Mapping[str, Any]], backbone: str = "") -> str:
    """Say by numbers whether the promise is kept: twice GAP, first of its size, within three points of the paper."""
    said = []
    for loss, name in LOSS_NAMES.items():
        gap = _figure(rows, "GAP", loss)
        ours = {each: _figure(rows, each, loss) for each in ("GSP", "GSP+ZSR")}
        reached = {each: figure for each, figure in ours.items() if figure is not None}
        paper = find_row("GSP+ZSR").paper
        if gap is None or not reached or paper is None:
            continue
        best, figure = max(reached.items(), key=lambda pair: pair[1])
        others = {row["row"]: row["map@r"] for row in rows if row["loss"] == loss and row["row"] not in reached}
        same_size = {other: value for other, value in others.items() if "64x128" not in other}
        ahead = [other for other, value in same_size.items() if value > figure]
        place = f"first among {len(same_size) + 1} rows of its size" if not ahead else f"behind {', '.join(ahead)}"
        distance = figure - paper[loss]
        within = (
            "within three points of"
            if abs(distance) <= 3
            else f"{abs(distance):.1f} points {'above' if distance > 0 else 'below'}"
        )
        said.append(
            f"{name}{backbone}: {best} {figure:.2f} is {figure / gap:.1f} times GAP ({gap:.2f}; paper "
            f"{paper[loss] / (find_row('GAP').paper or {loss: 1.0})[loss]:.1f} times), {place}, {within} the paper's "
            f"{paper[loss]:.2f}.{_with_a_sum(rows, loss, figure)}"
        )
    return "\n".join(f"- {line}" for line in said)
