"""The section of the benchmarks in the report: a table for every data set and protocol, what is missing, verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gspool.evaluation import PROTOCOLS
from gspool.experiments.benchmark.arms import DATA, SEEDS
from gspool.experiments.benchmark.combined import beside_layers
from gspool.experiments.benchmark.conventional import rendered as rendered_conventional
from gspool.experiments.benchmark.figures import arms_of
from gspool.experiments.benchmark.kept_rows import draws_told, earlier_steps_told, is_kept
from gspool.experiments.benchmark.noticed import equal_weights_told, memory_told, told_from_gap
from gspool.experiments.benchmark.overall import judged_together, over_losses
from gspool.experiments.benchmark.pair_steps import mixed_steps_told
from gspool.experiments.benchmark.paper import paper_values
from gspool.experiments.benchmark.pictures import pictures_of
from gspool.experiments.benchmark.search import search_arms
from gspool.experiments.benchmark.section_texts import (
    EXPLAINED,
    MADE_BY,
    SELECTION_EXPLAINED,
    SETTINGS_EXPLAINED,
)
from gspool.experiments.benchmark.selection_table import FILE as SELECTION
from gspool.experiments.benchmark.selection_table import rendered as selection_table
from gspool.experiments.benchmark.store import runs_of
from gspool.experiments.benchmark.tables import (
    concatenated,
    fair_rows,
    in_order,
    separate,
    table,
    tried_rows,
)
from gspool.experiments.benchmark.verdict import verdicts, verdicts_of_search
from gspool.experiments.experiment import NOT_RUN, Headline, Verdict
from gspool.experiments.report import caption
from gspool.provenance import read_result


def render_study(value: dict[str, Any], pictures: Mapping[str, str] | None = None) -> str:
    """Write the table of one benchmark, and its verdicts; pictures, where there are some, each after what it draws."""
    drawn = pictures or {}
    if value["protocol"] == "conventional":
        return rendered_conventional(value)
    promised, runs = PROTOCOLS["fair"].folds * len(SEEDS), runs_of(value)
    arms = in_order(arms_of(value))
    main = [arm for arm in arms if arm["pooling"] in ("gap", "gsp")]
    losses = [arm for arm in main if not arm["variant"]]
    tried = [arm for arm in main if arm["variant"]]
    # Variants of these are sizes that the paper's table names.
    layers = [arm for arm in arms if arm not in main]
    parts = []
    if losses:
        parts += ["The paper's settings, loss by loss:", table(fair_rows(value["data"], losses, promised))]
        told = [verdicts(losses, promised), over_losses(value, runs, PROTOCOLS["fair"].folds)]
        parts.append("\n".join(line for line in told if line))
        pairs = [(f"{loss} gsp", f"{loss} gap") for loss in dict.fromkeys(arm["loss"] for arm in losses)]
        parts += [equal_weights_told(losses), memory_told(runs), mixed_steps_told(runs, pairs)]
        parts += [drawn.get("_summary", ""), drawn.get("_losses", "")]
    if layers:
        parts += ["Other layers, at the paper's settings:", table(fair_rows(value["data"], layers, promised))]
        parts += [told_from_gap(layers), beside_layers(runs), drawn.get("_layers", "")]
    if tried:
        head = "Other settings, among which only the validation classes choose, and rows of earlier ways of training:"
        parts += [head, table(tried_rows(tried, promised)), SETTINGS_EXPLAINED]
        parts.append(told_from_gap([arm for arm in tried if not is_kept(arm)]))
        parts += [draws_told(runs), earlier_steps_told(runs)]
        parts += [verdicts_of_search(arms, runs, promised), drawn.get("_settings", "")]
    parts += [untried(value["arms"]), drawn.get("", ""), drawn.get("_looks", "")]
    return "\n\n".join(part for part in parts if part)


def untried(arms: list[dict[str, Any]]) -> str:
    """Say which settings of the search have not been trained yet; nothing where all have.

    Example:
        >>> untried([{"arm": arm.name, "loss": "c2"} for arm in search_arms(("c2",))[1:]])
        'Settings of the search that have not been tried yet: c2: epsilon 20.'
    """
    done = {arm["arm"] for arm in arms}
    told = []
    for loss in dict.fromkeys(arm["loss"] for arm in arms if arm["loss"] in ("c2", "pnca")):
        left = [arm.variant for arm in search_arms((loss,)) if arm.name not in done]
        told += [f"{loss}: {'; '.join(left)}"] if left else []
    return f"Settings of the search that have not been tried yet: {'. '.join(told)}." if told else ""


def render(results: Path) -> str:
    """Write the section: a table for every benchmark and protocol that has been run."""
    parts = []
    for name, record in _benchmarks(results):
        value = record["value"]
        head = f"**{value['data']}, {value['protocol']} protocol, {value['backbone']}.** {EXPLAINED[value['protocol']]}"
        made = [MADE_BY] if value["protocol"] == "fair" else []
        pictures = pictures_of(name, value) if value["protocol"] == "fair" else {}
        parts += [head, *made, render_study(value, pictures), caption(name, record)]
    selection = results / f"{SELECTION}.json"
    if selection.is_file():
        record = read_result(selection)
        head = "**What GSP selects on CUB before any training.** " + SELECTION_EXPLAINED
        parts.append(f"{head}\n\n{selection_table(record['value'])}\n\n{caption(SELECTION, record)}")
    return "\n\n".join(parts) if parts else NOT_RUN


def _benchmarks(results: Path) -> list[tuple[str, dict[str, Any]]]:
    """Give the results by their names, in the order of the data sets, the fair protocol first."""
    records = [(path.stem, read_result(path)) for path in sorted(results.glob("benchmark_*.json"))]
    return sorted(
        records, key=lambda each: (DATA.index(each[1]["value"]["data"]), each[1]["value"]["protocol"] != "fair")
    )


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Give MAP@R of single models and of the joined ones, for GAP and GSP with every loss at the paper's settings.

    The paper's are means over all folds: a row stands here once every fold has been trained.
    """
    found = []
    for arm in in_order(arms_of(value)):
        paper = paper_values(value["data"], arm["loss"], arm["pooling"])
        if arm["variant"] or arm["pooling"] not in ("gap", "gsp") or paper is None or arm["separate"] is None:
            continue
        what = f"MAP@R 128D; 512D, {value['data']}, {arm['loss']}, {arm['pooling']}"
        once = " (one repeat)" if arm["separate"]["repeats"] == 1 else ""
        ours = f"{separate(arm, 'map')}; 512D {concatenated(arm) or 'not kept'}{once}"
        found.append(Headline(what, f"{paper.map:.2f}; {paper.map_joined:.2f}", ours))
    return found


def judge(record: dict[str, Any]) -> Verdict:
    """Say whether GSP is ahead of GAP on CUB in the fair protocol."""
    value = record["value"]
    return judged_together(value, runs_of(value), PROTOCOLS["fair"].folds)
