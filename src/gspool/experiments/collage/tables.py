"""The section about Cifar Collage: tables beside the paper's figures, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspool.experiments.collage import remarks
from gspool.experiments.collage.bars import PICTURE, bars_caption
from gspool.experiments.collage.comparison import Rows
from gspool.experiments.collage.left_open import BACKBONES_OF_THE_PAPER, backbone_text, measure_text
from gspool.experiments.collage.names import BACKBONE_NAMES, BACKBONES, with_present_names
from gspool.experiments.collage.picture import EACH, PICKED, SCALED
from gspool.experiments.collage.recipe import GSP_OPTIONS, ZSR
from gspool.experiments.collage.rows import DISTILLED, FINE_TUNED, FINE_TUNING, ROWS, find_row
from gspool.experiments.collage.search import LOSSES
from gspool.experiments.collage.search_text import LOSS_NAMES, search_text
from gspool.experiments.collage.study import SEEDS
from gspool.experiments.collage.verdict import OURS, SAME_SIZE, WITHOUT, bullets, effect_of_zsr
from gspool.experiments.experiment import NOT_RUN, mean_and_deviation
from gspool.experiments.kept_seeds import missing_seeds
from gspool.experiments.pictured import pictured
from gspool.experiments.report import caption, table
from gspool.provenance import read_result

TUNED = ("GAP", "DeLF", "GeMean+GSP", WITHOUT, OURS)
PAPER_ON_ZSR = "The paper says that it raises MAP@R, here more than in its table of components."
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
    value, seeds = with_present_names(record["value"]), len(record["seeds"])
    left = unfinished(results)
    parts = [
        opening(value, seeds),
        f"**Not whole yet.** Missing: {left}; the same command makes them." if left else "",
        *frozen_part(value, seeds),
        "### Which setting matters",
        search_text(value),
        *tuned_part(value, seeds),
        *distilled_part(value, seeds),
        *fine_tuned_part(value, seeds),
        caption("collage", record),
    ]
    return "\n\n".join(part for part in parts if part)


def unfinished(results: Path) -> str:
    """Count the trainings that are missing, table by table, and name the seeds that are; empty where none is."""
    record = read_result(results / "collage.json")
    left = record["value"]["unfinished"]
    told = [f"{count} trainings of {TABLES[name]}" for name, count in left.items() if count]
    return ", ".join([*told, *filter(None, [missing_seeds(record["seeds"], SEEDS)])])


def opening(value: Mapping[str, Any], seeds: int) -> str:
    """Say what is measured, on what and how."""
    backbones = [f"{BACKBONE_NAMES[each['flavour']]} {100 * each['accuracy']:.1f} %" for each in value["backbones"]]
    layer = f"m = {GSP_OPTIONS['prototypes']}, mu = {GSP_OPTIONS['mu']:g}, epsilon = {GSP_OPTIONS['epsilon']:g}"
    return (
        "Collages of 2 x 2 tiles of 32 pixels: an object of a labelled super-class and three images of shared ones. "
        "The backbone is ResNet20, trained to classify CIFAR-100 (right on its test images: "
        f"{', '.join(backbones)}). Settings of Supp. 2.2: Adam 1e-3, halved after 5 passes without a better "
        f"validation, {layer}, lambda = {ZSR:g}. At most {value['epochs']} passes, stopped after {value['patience']} "
        f"passes without a better validation.\n\n{BACKBONES_OF_THE_PAPER} "
        f"{backbone_text(value['frozen'], value['fine_tuned'])} {measure_text()}\n\n"
        "Figures are MAP@R in percent on the test classes, at the best epoch by validation. "
        f"{f'Mean ± standard deviation over {seeds} seeds' if seeds > 1 else 'One seed'}; bold is the highest mean. "
        f"The paper's GSP is with the regularisation, so {OURS} is compared with it.\n\n{how_judged(seeds)}"
    )


def how_judged(seeds: int) -> str:
    """Say what ahead, behind and beyond stand on, and what they leave open."""
    if seeds < 2:
        return "One seed has no interval: nothing can be told ahead of or behind anything else."
    many, chance = len(SAME_SIZE), 0.05 * len(SAME_SIZE)
    return (
        'Rows are compared seed by seed. "Ahead", "behind", "more than" and "less than" stand where the 95 % interval '
        "of the mean difference (Student's t over seeds) leaves 0 out; where it does not, the two cannot be told "
        f"apart, which does not make them equal: of {seeds} seeds an interval is wide. In brackets is the interval of "
        f"{OURS} less the row. Rows *of its size* have an embedding as long; {WITHOUT} itself is not among them. Every "
        f"interval is of one comparison: of {many} rows no different from {OURS}, about {chance:.0f} would be called "
        "ahead or behind by chance. All seeds share the test images and the backbone's first weights: the intervals "
        "say nothing of others. Differences are those of the seeds' rounded figures, and may be 0.01 off those of the "
        "means."
    )


def frozen_part(value: Mapping[str, Any], seeds: int) -> list[str]:
    """Write the pooling table, what follows from it, and its pictures."""
    rows, head = value["frozen"], "### Frozen backbone, the pooling table"
    if not rows:
        return [head, NOT_RUN]
    return [
        head,
        bullets(rows, seeds),
        f"{effect_of_zsr(rows)} {PAPER_ON_ZSR}",
        remarks.furthest(rows),
        "*On the object*: part of the weight in the object's quarter (0.25 = average pooling). *Entropy*: of the "
        "weights, relative to equal weights (1 = average pooling).",
        side_by_side(rows, [row.name for row in ROWS], seeds),
        pictured(PICTURE, "Every layer with its deviation over seeds, and the paper's figures", bars_caption(rows)),
        remarks.by_sub_class(rows),
        attention(value.get("attention")),
    ]


def attention(known: Mapping[str, Any] | None) -> str:
    """Show where GSP looks; say how the maps are scaled, how the collages were picked, and what was trained."""
    if known is None:
        return ""
    return pictured(
        "collage.png",
        "Weights of the pooling over collages of training and test classes",
        f"Where {OURS} looks (PNCA, seed 0, frozen backbone): {EACH} collages of training classes, then {EACH} of "
        f"test classes. Above the collages, the object framed; below the weights. {SCALED} {PICKED} The model was "
        "trained for this picture with the settings of the table; it is none of those behind the table's figures: "
        f"{known['collages']:,} collages, best after {known['steps']:,} steps, {known['device']}.",
    )


def tuned_part(value: Mapping[str, Any], seeds: int) -> list[str]:
    """Write the table with the best settings by validation, each backbone judged apart."""
    rows = value["tuned"]
    names = [f"{name}{backbone}" for backbone in BACKBONES.values() for name in TUNED]
    judged = [tuned_bullets(rows, backbone, seeds) for backbone in BACKBONES.values()]
    return [
        "### With the best settings by validation",
        remarks.tuned_settings(value["best_settings"]) if rows else "",
        "\n".join(judged) if rows else "",
        effect_of_zsr(rows, BACKBONES.values()),
        side_by_side(rows, names, seeds),
    ]


def tuned_bullets(rows: Rows, backbone: str, seeds: int) -> str:
    """Judge the tuned rows of one backbone, whose names end in it."""
    names = {f"{name}{backbone}": name for name in TUNED}
    of_it = [{**row, "row": names[row["row"]]} for row in rows if row["row"] in names]
    return bullets(of_it, seeds, [name for name in TUNED if name not in (WITHOUT, OURS)], backbone)


def distilled_part(value: Mapping[str, Any], seeds: int) -> list[str]:
    """Write the table of the objects alone."""
    return [
        "### Distilled: the objects alone",
        "The same objects without backgrounds, 32 x 32 pixels: a measure of what pooling could reach by "
        "leaving the backgrounds out.",
        remarks.beside_gap(value["distilled"]),
        remarks.share_of_distilled(value["distilled"], value["frozen"]),
        side_by_side(value["distilled"], DISTILLED, seeds, paper=False),
    ]


def fine_tuned_part(value: Mapping[str, Any], seeds: int) -> list[str]:
    """Write the table of the backbone that learns too."""
    return [
        "### Fine-tuned backbone",
        f"The backbone learns too (batch norm frozen, lr {FINE_TUNING['lr']:g} where the paper has 0.001), on collages "
        f"that are stitched anew whenever they are seen, at most {value['fine_tuned_epochs']} passes.",
        remarks.beside_gap(value["fine_tuned"]),
        remarks.lead_left(value["fine_tuned"], value["frozen"]),
        effect_of_zsr(value["fine_tuned"]),
        side_by_side(value["fine_tuned"], FINE_TUNED, seeds),
    ]


def side_by_side(rows: Rows, names: Sequence[str], seeds: int, paper: bool = True) -> str:
    """Put the two losses beside each other, the best in bold; what has not been run says so.

    ``paper`` shows the paper's figures, which are of collages, and may be of a backbone that learns.
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
            figure = "not run" if row is None else _figure_text(row, seeds)
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


def _figure_text(row: Mapping[str, Any], seeds: int) -> str:
    count = len(row["by_seed"])
    few = f" ({count} of {seeds} seeds)" if 1 < count < seeds else ""
    return mean_and_deviation(row["map@r"], row["std"]) + few


def _number(row: Mapping[str, Any] | None, name: str, style: str) -> str:
    return "" if row is None or row[name] is None else format(row[name], style)
