"""The section about the synthetic study: picture, settings, what is seen, and the figures that a mean may hide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from gspool.experiments.experiment import Headline, Verdict, mean_and_deviation
from gspool.experiments.paired import in_words, seed_difference
from gspool.experiments.pictured import pictured
from gspool.experiments.report import table
from gspool.experiments.tokens_training import RANGE

PAIRS = "pairs of hulls that overlap"
# A run stopped far earlier than the others: after less than so much of the median of their epochs.
FAR_EARLIER = 0.5
Row = Mapping[str, Any]


def written(record: dict[str, Any]) -> str:
    """Show the picture, the tables, and whether the promise is kept."""
    value = record["value"]
    rows = value["rows"]
    parts = [
        _picture(value),
        _settings(value["settings"]),
        compared(*rows),
        stopped_early(rows),
        table(means(rows), ".2f"),
    ]
    if all("by_seed" in row for row in rows):
        parts += ["The same seed by seed:", table(seed_by_seed(rows), ".2f")]
    return "\n\n".join(part for part in parts if part)


def _picture(value: Mapping[str, Any]) -> str:
    return pictured(
        "tokens.png",
        "Samples of 16 classes in the plane, with their hulls, pooled by GAP and by GSP",
        f"New samples of the 16 trained classes, pooled to {value['settings']['dim']} numbers, with the convex hull of "
        "each class. Crosses are learned tokens, black ones the background. Shown is seed "
        f"{value['shown_seed']}, with which GSP has its median MAP@R.",
    )


def _settings(settings: Mapping[str, Any]) -> str:
    return (
        f"Tokens are bounded to [-{RANGE:g}, {RANGE:g}] and nothing is normalised; Adam {settings['lr']:g}, "
        f"stopped after {settings['patience']} epochs without a better validation (Supp. 2.1). The paper does not "
        f"say the rest: at most {settings['epochs']} epochs, validated every {settings['evaluate_every']}, "
        f"contrastive loss with margin {settings['neg_margin']:g}, m = {settings['prototypes']}, "
        f"mu = {settings['mu']:g}, epsilon = {settings['epsilon']:g}, {settings['samples_per_class']} samples a "
        "class."
    )


def compared(gap: Row, gsp: Row) -> str:
    """Say how the two layers differ, by means, and by medians where the figures of every seed are known."""
    return (
        f"MAP@R {gap['MAP@R']:.1f} with GAP and {gsp['MAP@R']:.1f} with GSP{_medians(gap, gsp, 'MAP@R', '.1f')}"
        f"{_in_pairs(gap, gsp)}; of the 120 pairs of hulls {gap[PAIRS]:g} overlap with GAP and {gsp[PAIRS]:g} with GSP "
        f"on average{_medians(gap, gsp, PAIRS, 'g')}, none with {gap['seeds without overlap']} and "
        f"{gsp['seeds without overlap']} seeds. Background tokens keep {gap['weight on background']:.2f} of the weight "
        f"with GAP and {gsp['weight on background']:.2f} with GSP. The share of background differs from sample to "
        "sample, so average pooling stretches a class along a ray from the background outwards; what leaves the "
        "background out does not."
    )


def typical(row: Row, name: str) -> float:
    """Give the median over seeds, which one run cannot move far; the mean where single seeds are not known.

    Example:
        >>> typical({"epochs": 10, "by_seed": {"0": {"epochs": 2}, "1": {"epochs": 3}, "2": {"epochs": 25}}}, "epochs")
        3.0
        >>> typical({"epochs": 10}, "epochs")
        10.0
    """
    return float(median(run[name] for run in row["by_seed"].values()) if "by_seed" in row else row[name])


def _medians(gap: Row, gsp: Row, name: str, style: str) -> str:
    if "by_seed" not in gap or "by_seed" not in gsp:
        return ""
    return f" (medians {typical(gap, name):{style}} and {typical(gsp, name):{style}})"


def _in_pairs(gap: Row, gsp: Row) -> str:
    if "by_seed" not in gap or "by_seed" not in gsp or len(gap["by_seed"]) < 2:
        return ""
    ahead = [gsp["by_seed"][seed]["MAP@R"] - run["MAP@R"] for seed, run in gap["by_seed"].items()]
    return f", seed by seed {in_words(seed_difference(ahead), 1)}"


def stopped_early(rows: Sequence[Row]) -> str:
    """Name the runs that stopped far earlier than the other seeds of their layer; nothing where none did.

    Example:
        >>> runs = {str(seed): {"MAP@R": 60.0, PAIRS: 2, "epochs": 200} for seed in range(3)}
        >>> early = {"MAP@R": 31.2, PAIRS: 25, "epochs": 65}
        >>> print(stopped_early([{"layer": "GAP", "by_seed": runs | {"4": early}}]))  # doctest: +NORMALIZE_WHITESPACE
        Stopped far earlier than the other seeds of its layer, after less than 50 % of the median of their epochs: GAP
        seed 4 after 65 epochs (others 200), with MAP@R 31.2 and 25 overlapping pairs (others 60.0 and 2). What stopped
        so early is part of the means, and hardly moves the medians.
    """
    told = []
    for row in rows:
        runs = row.get("by_seed", {})
        for seed, run in runs.items():
            others = [other for key, other in runs.items() if key != seed]
            if others and run["epochs"] < FAR_EARLIER * median(other["epochs"] for other in others):
                usual = {name: median(other[name] for other in others) for name in run}
                told.append(
                    f"{row['layer']} seed {seed} after {run['epochs']} epochs (others {usual['epochs']:g}), with MAP@R "
                    f"{run['MAP@R']:.1f} and {run[PAIRS]:g} overlapping pairs (others {usual['MAP@R']:.1f} and "
                    f"{usual[PAIRS]:g})"
                )
    if not told:
        return ""
    return (
        "Stopped far earlier than the other seeds of its layer, after less than "
        f"{100 * FAR_EARLIER:g} % of the median of their epochs: {'; '.join(told)}. "
        "What stopped so early is part of the means, and hardly moves the medians."
    )


def means(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Give the rows of the table, with medians beside the means where the figures of every seed are known."""
    shown = []
    for row in rows:
        line: dict[str, Any] = {}
        for name, value in row.items():
            if name != "by_seed":
                line[name] = "one seed" if name == "std" and value is None else value
            if name == PAIRS and "by_seed" in row:
                # The result holds a rounded mean, to fewer digits than the table shows.
                line[name] = fmean(run[name] for run in row["by_seed"].values())
            if name in ("MAP@R", PAIRS) and "by_seed" in row:
                line[f"{name}, median"] = typical(row, name)
        shown.append(line)
    return shown


def seed_by_seed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Give a line a seed, with the figures of both layers."""
    names = ("MAP@R", PAIRS, "epochs")
    return [
        {"seed": seed, **{f"{name}, {row['layer']}": row["by_seed"][seed][name] for name in names for row in rows}}
        for seed in rows[0]["by_seed"]
    ]


def seen(value: Mapping[str, Any]) -> Verdict:
    """Judge the promise: hulls overlap with GAP, and none does with GSP, each with more than half of the seeds.

    One seed decides nothing.
    """
    gap, gsp = value["rows"]
    apart = {row["layer"]: [int(word) for word in row["seeds without overlap"].split(" of ")] for row in (gap, gsp)}
    kept = 2 * apart["GSP"][0] > apart["GSP"][1] and 2 * apart["GAP"][0] < apart["GAP"][1]
    because = (
        f"no hulls overlap with {gap['seeds without overlap']} seeds (GAP) and {gsp['seeds without overlap']} (GSP); "
        f"MAP@R {gap['MAP@R']:.1f} and {gsp['MAP@R']:.1f}{_medians(gap, gsp, 'MAP@R', '.1f')}"
    )
    if apart["GSP"][1] < 2:
        return Verdict("cannot tell", f"one seed: {because}")
    # By the median: one run that stopped too early would decide a mean.
    return Verdict("yes" if kept else "partly" if typical(gsp, PAIRS) < typical(gap, PAIRS) else "no", because)


def headlines(value: Mapping[str, Any]) -> list[Headline]:
    """Give MAP@R of both layers."""
    return [
        Headline(f"MAP@R, {row['layer']}", "drawn only", mean_and_deviation(row["MAP@R"], row["std"], 1))
        for row in value["rows"]
    ]
