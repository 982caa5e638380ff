"""Whether GSP is ahead of GAP, behind it, or cannot be told from it, in words that follow from the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspool.experiments.benchmark.choice import Choice, chosen_by_validation
from gspool.experiments.benchmark.figures import paired_difference
from gspool.experiments.benchmark.store import Run, runs_by_arm
from gspool.experiments.benchmark.tables import repeated
from gspool.experiments.experiment import Verdict
from gspool.experiments.paired import by_folds, folds_in_doubt, in_words, interval, judged, verdict

# Of fewer pairs an interval is so wide that it says nothing.
FEWEST = 3


def verdicts(arms: Sequence[dict[str, Any]], promised: int) -> str:
    """Write a line a loss about GSP at the paper's setting; ``promised`` pairs there are to be in the end."""
    what = "{loss}, the paper's setting"
    return "\n".join(_line(what.format(**arm), arm, promised, _gap(arms, arm)) for arm in at_the_papers_setting(arms))


def at_the_papers_setting(arms: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the rows of GSP at the paper's settings that have pairs with GAP."""
    return [arm for arm in arms if arm["pooling"] == "gsp" and not arm["variant"] and arm["difference_from_gap"]]


def verdicts_of_search(arms: Sequence[dict[str, Any]], runs: Sequence[Run], promised: int) -> str:
    """Write a line a loss about the setting which validation chose among those of the search that were tried."""
    by_name = {arm["arm"]: arm for arm in arms}
    lines = []
    for loss in dict.fromkeys(arm["loss"] for arm in arms):
        choice = chosen_by_validation(runs, loss)
        if choice is None:
            continue
        count = len(choice.places)
        among = f"{choice.among} settings, {choice.ahead:+.2f} in the {count} pair{'s' * (count > 1)} that all have"
        what = f"{loss}, {choice.arm.variant}, which validation chose out of {among}"
        line = _line(what, by_name[choice.arm.name], promised, _gap(arms, by_name[choice.arm.name]))
        lines.append(" ".join(part for part in (line, apart_from_the_choice(choice, runs, loss)) if part))
    return "\n".join(lines)


def apart_from_the_choice(choice: Choice, runs: Sequence[Run], loss: str) -> str:
    """Say what the chosen setting gains in pairs that took no part in the choice, which flatters those that did."""
    by_arm = runs_by_arm(run for run in runs if run.place not in choice.places)
    ours, gap = (by_arm.get(name, []) for name in (choice.arm.name, f"{loss} gap"))
    test, watched = paired_difference(ours, gap), paired_difference(ours, gap, "validation")
    if test is None or watched is None or test.pairs < FEWEST:
        return ""
    told = f"{in_words(test._asdict())}{folds_in_doubt(test._asdict())}"
    return (
        f"In the {test.pairs} pairs that took no part in the choice: {told} on test, {in_words(watched._asdict())} on "
        "validation."
    )


def _gap(arms: Sequence[dict[str, Any]], like: dict[str, Any]) -> dict[str, Any] | None:
    return next((arm for arm in arms if arm["arm"] == f"{like['loss']} gap"), None)


def _line(what: str, arm: dict[str, Any], promised: int, gap: dict[str, Any] | None) -> str:
    found = arm["difference_from_gap"]
    around = f"{found['pairs']} of {promised} pairs of runs"
    points = f"{found['mean']:+.2f} points of MAP@R"
    cut = arm["endings"]["time"]
    facts = [
        _on_validation(arm),
        "" if arm["entropy"] is None else f"Entropy of the weights: {arm['entropy']:.4f}.",
        f"Time cut {cut} of its runs short." if cut else "",
    ]
    if found["pairs"] < FEWEST:
        return " ".join([f"- {what}: **too few runs to tell**, {points} ({around}).", *filter(None, facts)])
    told = {"ahead": "GSP is ahead of GAP", "behind": "GSP is behind GAP", "cannot tell": "cannot tell"}[verdict(found)]
    low, high = interval(found)
    head = f"- {what}: **{told}**, {points} (95 % interval {low:+.2f} to {high:+.2f} over {around})."
    return " ".join([head, *filter(None, [_by_folds(found), _against_deviations(found, arm, gap), *facts])])


def _by_folds(found: dict[str, Any]) -> str:
    if found["folds"] < 2 or found["folds"] == found["pairs"]:
        return ""
    low, high = interval(by_folds(found))
    doubt = verdict(by_folds(found)) != verdict(found)
    also = ", so that other folds could tell otherwise" if doubt else ""
    return f"By the means of {found['folds']} folds, whose runs share classes: {low:+.2f} to {high:+.2f}{also}."


def _against_deviations(found: dict[str, Any], arm: dict[str, Any], gap: dict[str, Any] | None) -> str:
    """Compare with the deviation of single pairs, and with that which the tables show of whole repeats."""
    single = f"{_than(found['mean'], found['std'])} a single pair deviates ({found['std']:.2f})"
    repeats = [repeated(each) for each in (gap, arm) if each is not None]
    known = [each["map"]["std"] for each in repeats if each is not None]
    if len(known) < 2:
        return f"It is {single}."
    over_repeats = f"{_than(found['mean'], max(known))} repeats do (GAP {known[0]:.2f}, GSP {known[1]:.2f})"
    return f"It is {single} and {over_repeats}."


def _than(difference: float, deviation: float) -> str:
    return "more than" if abs(difference) > deviation else "less than"


def _on_validation(arm: dict[str, Any]) -> str:
    """Say what the classes that choose settings see of the difference, and whether it is told from 0."""
    watched = arm.get("validation_difference")
    if not watched or watched["pairs"] < 2:
        return ""
    word = "" if (told := verdict(watched)) == "cannot tell" else f" it is {told}"
    return f"On validation classes{word}: {in_words(watched)}{folds_in_doubt(watched)}."


def seen(arms: Sequence[dict[str, Any]], folds: int) -> Verdict:
    """Say whether GSP at the paper's setting is ahead with every loss that has been trained on all folds."""
    whole = [arm for arm in at_the_papers_setting(arms) if arm["difference_from_gap"]["folds"] == folds]
    if not whole:
        return Verdict("cannot tell", f"no loss has pairs of runs on all {folds} folds")
    found = {arm["loss"]: arm["difference_from_gap"] for arm in whole}
    told = ", ".join(f"{loss} {in_words(each)}{folds_in_doubt(each)}" for loss, each in found.items())
    return Verdict(judged([*found.values()]), f"GSP against GAP, points of MAP@R: {told}")
