"""The benchmarks' tables, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspool.experiments.benchmark.arms import LARGE, LOSSES, POOLINGS, SEEDS, WIDE
from gspool.experiments.benchmark.paper import paper_deviations, paper_values, pooling_table_value
from gspool.experiments.experiment import mean_and_deviation


def spread(value: dict[str, float] | None) -> str:
    """Write a mean and its deviation.

    Example:
        >>> spread({"mean": 20.581, "std": 0.132}), spread(None)
        ('20.58 ± 0.13', '')
    """
    return "" if value is None else mean_and_deviation(value["mean"], value["std"])


def separate(arm: Mapping[str, Any], metric: str) -> str:
    """Write a metric of single models; with its deviation where every fold has the same repeats, several of them.

    Where folds are missing the deviation would be theirs, which is greater than that of repeats.
    """
    found = repeated(arm)
    return number(arm[metric]["mean"]) if found is None else f"{spread(found[metric])}{_few(found)}"


def repeated(arm: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Give what single models reach over repeats; None where there is one, or runs beside those of whole repeats."""
    found: Mapping[str, Any] | None = arm.get("separate")
    if found is None or found["repeats"] < 2 or found["repeats"] * len(arm["folds"]) != arm["runs"]:
        return None
    return found


def concatenated(arm: Mapping[str, Any]) -> str:
    """Write MAP@R of the concatenated models of all folds; nothing where no repeat has kept all its embeddings."""
    joined = arm["joined"]
    if joined is None:
        return ""
    if joined["combinations"] == 1:
        # Where single models have one repeat as well, the column of runs says so.
        more = (arm.get("separate") or joined)["repeats"] > 1
        return number(joined["map_512D"]["mean"]) + " (one repeat)" * more
    return f"{spread(joined['map_512D'])}{_few(joined)}"


def _few(found: Mapping[str, Any]) -> str:
    """Say so where a deviation comes from less than the promised repeats."""
    return f" ({found['repeats']} repeats)" if found["repeats"] < len(SEEDS) else ""


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
    """Put the rows of a loss together, and in each the paper's settings before others, GAP and GSP first.

    Example:
        >>> arms = [("c2", "gsp", "mu 1"), ("pnca", "gsp", ""), ("c2", "gsp", ""), ("c2", "gap", "")]
        >>> names = ("loss", "pooling", "variant")
        >>> [arm["pooling"] + arm["variant"] for arm in in_order([dict(zip(names, arm)) for arm in arms])]
        ['gap', 'gsp', 'gspmu 1', 'gsp']
    """
    losses = [*LOSSES, *(arm["loss"] for arm in arms)]
    layers = [*POOLINGS, *(arm["pooling"] for arm in arms)]
    return sorted(arms, key=lambda arm: (losses.index(arm["loss"]), arm["variant"] != "", layers.index(arm["pooling"])))


def row_name(arm: Mapping[str, Any]) -> str:
    """Name a row within its loss.

    Example:
        >>> row_name({"pooling": "gsp", "variant": "mu 1"}), row_name({"pooling": "gap", "variant": ""})
        ('gsp mu 1', 'gap')
    """
    return f"{arm['pooling']} {arm['variant']}".strip()


def fair_rows(data: str, arms: Sequence[dict[str, Any]], promised: int) -> list[dict[str, str]]:
    """Give rows at the paper's settings in the fair protocol, its values beside ours.

    Args:
        data: the benchmark.
        arms: figures of the rows.
        promised: how many runs of each are to be made.
    """
    rows = []
    for arm in arms:
        paper = paper_values(data, arm["loss"], arm["pooling"]) if not arm["variant"] else None
        deviation = paper_deviations(data, arm["loss"], arm["pooling"])
        single = pooling_table_value(arm["loss"], arm["pooling"], arm["variant"]) if data == "cub" else None
        rows.append(
            {
                **named(arm),
                "MAP@R 128D": separate(arm, "map"),
                "paper": mean_and_deviation(paper.map, deviation.map) if paper and deviation else number(single),
                "MAP@R 512D": concatenated(arm),
                "paper 512D": number(paper.map_joined) if paper else "",
                "P@1 128D": separate(arm, "p1"),
                "paper P@1": number(paper.p1) if paper else "",
                "ahead of GAP, paired": difference(arm),
                **_made(arm, promised),
            }
        )
    return rows


def tried_rows(arms: Sequence[dict[str, Any]], promised: int) -> list[dict[str, str]]:
    """Give rows of other settings than the paper's: what the classes that choose see of them, then the test classes."""
    return [
        {
            **named(arm),
            "ahead of GAP on validation": difference(arm, "validation_difference"),
            "on test": difference(arm),
            "MAP@R 128D": separate(arm, "map"),
            "MAP@R 512D": concatenated(arm),
            "P@1 128D": separate(arm, "p1"),
            **_made(arm, promised),
        }
        for arm in arms
    ]


def named(arm: Mapping[str, Any]) -> dict[str, str]:
    """Give the first columns of a row: what it is of."""
    setting = f"{arm['variant']} ({WIDE}D)" if arm["variant"] == LARGE else arm["variant"] or "paper's"
    return {"loss": arm["loss"], "pooling": arm["pooling"], "setting": setting}


def _made(arm: Mapping[str, Any], promised: int) -> dict[str, str]:
    """Give the flatness of the weights, where runs were best, and how many there are."""
    cut = arm["endings"]["time"]
    return {
        "entropy": number(arm["entropy"], ".4f"),
        "best step": number(arm["mean_best_step"], ".0f"),
        "runs": f"{arm['runs']} of {promised}" + (f", {cut} cut short" if cut else ""),
    }


def validation_figure(arm: Mapping[str, Any]) -> str:
    """Write an arm's MAP@R on the validation classes, with the deviation where there are several seeds to deviate."""
    return mean_and_deviation(arm["validation_map"], arm["validation_std"] if arm["runs"] > 1 else None)


def validation_rows(value: Mapping[str, Any]) -> str:
    """Write a row an arm: its MAP@R on the validation classes, the deviation over seeds, the entropy of its weights."""
    return table(
        [
            {
                "loss": arm["loss"],
                "pooling": arm["pooling"],
                "setting": arm["variant"],
                "validation MAP@R": validation_figure(arm),
                "ahead of GAP, paired": difference(arm, "validation_difference"),
                "entropy": number(arm["entropy"], ".4f"),
                "best step": number(arm["mean_best_step"], ".0f"),
                "runs": str(arm["runs"]),
            }
            for arm in value["arms"]
        ]
    )
