"""The benchmarks' tables, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspool.experiments.benchmark.arms import LOSSES
from gspool.experiments.benchmark.paper import conventional_values, paper_values, pooling_table_value
from gspool.experiments.experiment import mean_and_deviation


def spread(value: dict[str, float] | None) -> str:
    """Write a mean and its deviation.

    Example:
        >>> spread({"mean": 20.581, "std": 0.132}), spread(None)
        ('20.58 ± 0.13', '')
    """
    return "" if value is None else mean_and_deviation(value["mean"], value["std"])


def spread_of_runs(value: dict[str, float], runs: int) -> str:
    """Write a mean, with its deviation where there are several runs to deviate."""
    return spread(value) if runs > 1 else number(value["mean"])


def separate(arm: Mapping[str, Any], metric: str) -> str:
    """Write a metric of single models: over the combinations where those hold every run, else over the runs."""
    joined = arm["joined"] or {}
    complete = joined.get("combinations", 1) > 1 and joined["repeats"] * len(arm["folds"]) == arm["runs"]
    return spread_of_runs(joined[f"{metric}_128D"] if complete else arm[metric], arm["runs"])


def concatenated(arm: Mapping[str, Any]) -> str:
    """Write MAP@R of the concatenated models of all folds; nothing where no repeat is complete."""
    joined = arm["joined"]
    return "" if joined is None else spread_of_runs(joined["map_512D"], joined["combinations"])


def number(value: float | None, style: str = ".2f") -> str:
    """Write a number, or nothing."""
    return "" if value is None else format(value, style)


def table(rows: Sequence[dict[str, str]]) -> str:
    """Write rows of text as a Markdown table; words stand left, numbers right."""
    names = [*rows[0]]
    lines = ["| " + " | ".join(names) + " |", "|" + "".join("---|" if i < 3 else "---:|" for i in range(len(names)))]
    return "\n".join([*lines, *("| " + " | ".join(row[name] for name in names) + " |" for row in rows)])


def difference(figures: Mapping[str, Any], of: str = "difference_from_gap") -> str:
    """Write how far an arm is ahead of GAP in paired runs: the mean, its standard error, and how many are ahead."""
    found = figures[of]
    if found is None:
        return ""
    told = f"error {found['error']:.2f}, " if found["pairs"] > 1 else ""
    return f"{found['mean']:+.2f} ({told}{found['ahead']} of {found['pairs']} ahead)"


def in_order(arms: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the rows of a loss together, and in each the paper's settings before others.

    Example:
        >>> arms = [("c2", "mu 1"), ("pnca", ""), ("c2", "")]
        >>> [each["variant"] for each in in_order([{"loss": loss, "variant": what} for loss, what in arms])]
        ['', 'mu 1', '']
    """
    losses = [*LOSSES, *(arm["loss"] for arm in arms)]
    return sorted(arms, key=lambda arm: (losses.index(arm["loss"]), arm["variant"] != ""))


def fair_rows(data: str, arms: Sequence[dict[str, Any]], promised: int) -> list[dict[str, str]]:
    """Give the rows of the fair protocol, the paper's values beside ours; ``promised`` runs an arm are to be made."""
    rows = []
    for arm in arms:
        paper = paper_values(data, arm["loss"], arm["pooling"]) if not arm["variant"] else None
        single = pooling_table_value(arm["loss"], arm["pooling"], arm["variant"]) if data == "cub" else None
        cut = arm["endings"]["time"]
        rows.append(
            {
                "loss": arm["loss"],
                "pooling": arm["pooling"],
                "setting": arm["variant"] or "paper's",
                "MAP@R 128D": separate(arm, "map"),
                "paper": number(paper.map if paper else single),
                "MAP@R 512D": concatenated(arm),
                "paper 512D": number(paper.map_joined) if paper else "",
                "P@1 128D": separate(arm, "p1"),
                "paper P@1": number(paper.p1) if paper else "",
                "ahead of GAP, paired": difference(arm),
                "validation MAP@R": number(arm["validation_map"]),
                "entropy": number(arm["entropy"], ".4f"),
                "best step": number(arm["mean_best_step"], ".0f"),
                "steps": number(arm["mean_steps"], ".0f"),
                "images/s": number(arm["mean_images_per_second"], ".0f"),
                "runs": f"{arm['runs']} of {promised}" + (f", {cut} cut short" if cut else ""),
            }
        )
    return rows


def conventional_rows(data: str, backbone: str, arms: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Give the rows of the conventional protocol: the best of the repeats, R@K."""
    rows = []
    for arm in arms:
        paper = conventional_values(data, backbone, arm["pooling"])
        best = arm["best_run"]["metrics"]
        rows.append(
            {
                "loss": arm["loss"],
                "pooling": arm["pooling"],
                "setting": arm["variant"] or "paper's",
                **{name.upper(): number(100 * value) for name, value in best.items() if name.startswith("r@")},
                "paper R@1": number(paper.r1) if paper else "",
                "MAP@R": number(100 * best["map@r"]),
                "paper MAP@R": number(paper.map) if paper else "",
                "entropy": number(arm["entropy"], ".4f"),
                "runs": str(arm["runs"]),
            }
        )
    return rows


def validation_rows(value: Mapping[str, Any]) -> str:
    """Write a row an arm: its MAP@R on the validation classes, the deviation over seeds, the entropy of its weights."""
    return table(
        [
            {
                "loss": arm["loss"],
                "pooling": arm["pooling"],
                "setting": arm["variant"],
                "validation MAP@R": mean_and_deviation(
                    arm["validation_map"], arm["validation_std"] if arm["runs"] > 1 else None
                ),
                "ahead of GAP, paired": difference(arm, "validation_difference"),
                "entropy": number(arm["entropy"], ".4f"),
                "best step": number(arm["mean_best_step"], ".0f"),
                "runs": str(arm["runs"]),
            }
            for arm in value["arms"]
        ]
    )
