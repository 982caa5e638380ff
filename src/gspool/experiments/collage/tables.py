"""The section about Cifar Collage: tables beside the paper's figures, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspool.experiments.certificate import read_result
from gspool.experiments.collage.rows import DISTILLED, FINE_TUNED, ROWS, find_row
from gspool.experiments.collage.search import AS_THE_PAPER, LOSSES, TOGETHER
from gspool.experiments.experiment import NOT_RUN
from gspool.experiments.report import caption, table

LOSS_NAMES = {"c2": "C2", "pnca": "PNCA"}
TUNED = ("GAP", "GSP", "GSP+ZSR")
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
        caption("collage", record),
        "*On the object* is the part of the weight in the object's quarter (a quarter of it for average pooling), "
        "*entropy* that of the weights against equal ones.",
        *_attention(value.get("attention")),
        "### Which unstated setting matters",
        _search_text(value),
        _search_table(value["search"]),
        "### With the best settings by validation",
        "Every layer with its own best settings of the search above.",
        _verdict(value["tuned"]),
        _side_by_side(value["tuned"], TUNED),
        "### Distilled: the objects alone",
        "The same objects without backgrounds, 32 x 32 pixels: what pooling could reach at best.",
        _side_by_side(value["distilled"], DISTILLED),
        "### Fine-tuned backbone",
        "The backbone learns too (batch norm frozen, lr 1e-4), on collages that are stitched anew whenever they are "
        f"seen, at most {value['fine_tuned_epochs']} passes.",
        _side_by_side(value["fine_tuned"], FINE_TUNED),
    ]
    return "\n\n".join(part for part in parts if part)


def unfinished(results: Path) -> str:
    """Count the trainings that are missing, table by table; empty where none is."""
    left = read_result(results / "collage.json")["value"]["unfinished"]
    return ", ".join(f"{count} trainings of {TABLES[name]}" for name, count in left.items() if count)


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


def _side_by_side(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Put the two losses beside each other, the best in bold; what has not been run says so."""
    if not rows:
        return NOT_RUN
    best = {loss: max((row["map@r"] for row in rows if row["loss"] == loss), default=None) for loss in LOSSES}
    found = {(row["row"], row["loss"]): row for row in rows}
    lines = []
    for name in names:
        line = {"layer": name}
        for loss, shown in LOSS_NAMES.items():
            row, paper = found.get((name, loss)), find_row(name).paper
            figure = "not run" if row is None else _figure_text(row)
            line[shown] = f"**{figure}**" if row is not None and row["map@r"] == best[loss] else figure
            line[f"{shown}, paper"] = "" if paper is None else f"{paper[loss]:.2f}"
            line[f"{shown}, on the object"] = _number(row, "on_object", ".2f")
            line[f"{shown}, entropy"] = _number(row, "entropy", ".3f")
        lines.append(line)
    return table(lines, "g")


def _figure_text(row: Mapping[str, Any]) -> str:
    return f"{row['map@r']:.2f} (one seed)" if row["std"] is None else f"{row['map@r']:.2f} ± {row['std']:.2f}"


def _number(row: Mapping[str, Any] | None, name: str, style: str) -> str:
    return "" if row is None or row[name] is None else format(row[name], style)


def _figure(rows: Sequence[Mapping[str, Any]], name: str, loss: str) -> float | None:
    return next((row["map@r"] for row in rows if (row["row"], row["loss"]) == (name, loss)), None)


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
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
            f"{name}: {best} {figure:.2f} is {figure / gap:.1f} times GAP ({gap:.2f}; paper "
            f"{paper[loss] / (find_row('GAP').paper or {loss: 1.0})[loss]:.1f} times), {place}, {within} the paper's "
            f"{paper[loss]:.2f}."
        )
    return "\n".join(f"- {line}" for line in said)


def _search_text(value: Mapping[str, Any]) -> str:
    """Say what the search is, which settings moved GSP most, and what was best."""
    best = ", ".join(f"{pair.upper()}: *{name}*" for pair, name in value["best"].items())
    said = [
        "One setting at a time away from the paper's, for GAP and GSP alike, one seed, judged on the validation "
        f"classes alone; then everything that helped, together. Best by validation: {best}."
    ]
    for loss, shown in LOSS_NAMES.items():
        reached = {
            row["variant"]: row["validation"]
            for row in value["search"]
            if (row["pooling"], row["loss"]) == ("gsp", loss)
        }
        start = reached.pop(AS_THE_PAPER, None)
        together = reached.pop(TOGETHER, None)
        if start is None or not reached:
            continue
        moved = sorted(reached, key=lambda name: abs(reached[name] - start), reverse=True)[:4]
        told = ", ".join(f"{name} ({reached[name] - start:+.1f})" for name in moved)
        joint = "" if together is None else f"; what helped, together: {together - start:+.1f}"
        said.append(f"What moved GSP most with {shown}, in points of validation MAP@R: {told}{joint}.")
    return "\n\n".join(said)


def _search_table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(
            (row["pooling"], row["variant"]), {"layer": row["pooling"].upper(), "variant": row["variant"]}
        )
        line[LOSS_NAMES[row["loss"]]] = row["validation"]
    columns = ["layer", "variant", *LOSS_NAMES.values()]
    heads = {name: f"{name}, validation" for name in LOSS_NAMES.values()}
    ordered = sorted(lines.values(), key=lambda line: (line["layer"], line["variant"] != AS_THE_PAPER))
    return table([{heads.get(column, column): line.get(column, "") for column in columns} for line in ordered], ".2f")
