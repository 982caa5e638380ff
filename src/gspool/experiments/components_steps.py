"""What can be told of the four rows of Table 1: every step between two of them, in pairs of runs, with its interval."""

from __future__ import annotations

from typing import Any

from gspool.experiments.benchmark.figures import paired_difference
from gspool.experiments.benchmark.pair_steps import mixed_steps_told
from gspool.experiments.benchmark.store import Run, runs_of
from gspool.experiments.components_paper import NAMES, paper_figures, paper_order
from gspool.experiments.experiment import Verdict
from gspool.experiments.paired import by_folds, folds_in_doubt, holds, in_words, judged, verdict

# From each to the other; a step adds one of the two parts.
STEPS = (("neither", "GSP"), ("neither", "ZSR"), ("GSP", "both"), ("ZSR", "both"))
WHOLE, ALONE = ("neither", "both"), ("GSP", "ZSR")
# A mean difference with its error, by the rows that it leads from and to.
Differences = dict[tuple[str, str], dict[str, Any]]


def differences(value: dict[str, Any]) -> Differences | None:
    """Compare the rows in pairs of runs; None until every comparison has two pairs."""
    runs: dict[str, list[Run]] = {name: [] for name in NAMES.values()}
    for each in value["runs"]:
        if each["asked"]["arm"] in NAMES:
            runs[NAMES[each["asked"]["arm"]]].append(Run(each["asked"], each["found"]))
    found = {}
    for before, after in (*STEPS, WHOLE, ALONE):
        between = paired_difference(runs[after], runs[before])
        if between is None or between.pairs < 2:
            return None
        found[before, after] = between._asdict()
    return found


def told(value: dict[str, Any]) -> str:
    """Say how far the rows are apart, which of that is beyond its interval, and what the weights have to do with it."""
    found = differences(value)
    if found is None:
        return ""
    ahead = ", ".join(f"{name} {in_words(found['neither', name])}" for name in ("GSP", "ZSR", "both"))
    further = " and ".join(f"{in_words(found[name, 'both'])} ahead of {name} alone" for name in ("GSP", "ZSR"))
    figures = (
        f"Ahead of neither, in pairs of runs: {ahead}{in_doubt(found[WHOLE])}. Both together are {further}. "
        f"{paper_told(found, value['data'])}"
    )
    said = f"**{against_average_pooling(found)}** {order_told(found, value)}"
    rows = {name: arm for arm, name in NAMES.items()}
    steps = [(rows[after], rows[before]) for before, after in (*STEPS, WHOLE)]
    parts = (figures, said, selecting_told(found, value), mixed_steps_told(runs_of(value), steps, NAMES))
    return "\n\n".join(part for part in parts if part)


def paper_told(found: Differences, data: str) -> str:
    """Say what the paper gains with each, and which of that our intervals leave out, by pairs and by means of folds."""
    theirs = {name: paper_figures(data, arm)[1] for arm, name in NAMES.items()}
    gains = {name: theirs[name] - theirs["neither"] for name in ("GSP", "ZSR", "both")}
    pairs = [name for name, gain in gains.items() if not holds(found["neither", name], gain)]
    folds = [name for name in pairs if not holds(by_folds(found["neither", name]), gains[name])]
    left_out = f"of these our intervals leave out {' and '.join(pairs) or 'none'}"
    if pairs:
        left_out += f", by means of folds {' and '.join(folds) or 'none'}"
    return f"The paper gains {', '.join(f'{name} {gain:+.2f}' for name, gain in gains.items())}; {left_out}."


def in_doubt(found: dict[str, Any]) -> str:
    """Give the interval by means of folds where pairs of runs tell a difference and these do not."""
    return "" if verdict(found) == "cannot tell" else folds_in_doubt(found)


def against_average_pooling(found: Differences) -> str:
    """Say which rows can be told from neither, which is average pooling.

    Example:
        >>> error = {"error": 0.1, "pairs": 12, "folds": 12, "fold_error": 0.1}
        >>> means = {"GSP": 0.1, "ZSR": 0.1, "both": 0.9}
        >>> against_average_pooling({("neither", name): {"mean": mean, **error} for name, mean in means.items()})
        'By pairs of runs, only both together can be told from average pooling.'
    """
    names = {"GSP": "GSP alone", "ZSR": "ZSR alone", "both": "both together"}
    words = {name: verdict(found["neither", name]) for name in names}
    doubted = [names[name] for name in names if in_doubt(found["neither", name])]
    behind = [names[name] for name, word in words.items() if word == "behind"]
    ahead = [names[name] for name, word in words.items() if word == "ahead"]
    of = f" of {' and '.join(doubted)}" if len(doubted) < len(behind + ahead) else ""
    doubt = f"; means of folds do not tell it{of}" if doubted else ""
    if behind:
        there = f"behind average pooling: {', '.join(behind)}; ahead of it: {', '.join(ahead) or 'none'}"
    elif not ahead:
        there = "none of the three can be told from average pooling"
    elif len(ahead) == len(names):
        there = "each alone and both together are ahead of average pooling"
    else:
        there = f"only {' and '.join(ahead)} can be told from average pooling"
    return f"By pairs of runs, {there}{doubt}."


def order_told(found: Differences, value: dict[str, Any]) -> str:
    """Say whether the means lie in the paper's order, and which single steps between them are beyond their interval."""
    means = {"neither": 0.0, **{name: found["neither", name]["mean"] for name in ("GSP", "ZSR", "both")}}
    same = sorted(means, key=lambda name: means[name]) == paper_order(value["data"])
    beyond = [f"{before} to {after}" for before, after in STEPS if verdict(found[before, after]) != "cannot tell"]
    steps = f"told from 0 are the steps {', '.join(beyond)}"
    if not beyond:
        steps = "no single step between them can be told from 0"
    joined = ", but " if same and not beyond else "; "
    return f"The order of the four means is {'' if same else 'not '}the paper's{joined}{steps}."


def selecting_told(found: Differences, value: dict[str, Any]) -> str:
    """Say how uneven the weights are, what each part gains alone, and whether that tells what selecting brings."""
    entropies = {NAMES[arm["arm"]]: arm["entropy"] for arm in value["arms"]}
    alone = {name: found["neither", name] for name in ALONE}
    beyond = [f"{name} alone" for name, each in alone.items() if verdict(each) != "cannot tell"]
    so = f"Told from 0: {' and '.join(beyond)}."
    if not beyond:
        so = "Neither can be told from 0: how much of the gain of both comes from selecting cannot be told."
    lowest = min(entropies["GSP"], entropies["both"])
    return (
        f"At the paper's epsilon the entropy of the weights of GSP is {lowest:.2f} on {value['data']}; it is 1 where "
        "all places weigh the same, and near 1 they may still weigh differently. GSP alone, which selects without "
        f"regularisation, gains {alone['GSP']['mean']:+.2f}; ZSR alone, with equal weights (mu = 1), "
        f"{alone['ZSR']['mean']:+.2f}; ZSR less GSP is {in_words(found[ALONE])}. {so}"
    )


def seen(value: dict[str, Any]) -> Verdict:
    """Judge the promise: both parts alone ahead of neither, and both together ahead of each alone.

    Where only both together are ahead of neither, it holds in part.
    """
    found = differences(value)
    if found is None:
        return Verdict("cannot tell", "not every row has two runs in the same folds and seeds")
    holds = judged([found[step] for step in STEPS])
    if holds in ("no", "cannot tell") and verdict(found[WHOLE]) == "ahead":
        holds = "partly"
    beyond = sum(verdict(found[step]) == "ahead" for step in STEPS)
    steps = f"{beyond or 'none'} of the {len(STEPS)} single steps can be told from 0"
    whole = f"{in_words(found[WHOLE])} points of MAP@R ahead of average pooling"
    return Verdict(holds, f"both together {whole}{in_doubt(found[WHOLE])}; {steps}")
