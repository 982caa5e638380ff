"""Whether quality falls as mu grows: small values of mu against large ones, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from gspool.experiments.benchmark.tables import validation_figure
from gspool.experiments.experiment import Verdict
from gspool.experiments.paired import in_words, seed_difference, verdict

# What the paper calls low, and what is not.
MOST_SMALL, LEAST_LARGE = 0.3, 0.7


def by_seed(value: dict[str, Any]) -> dict[int, dict[str, float]]:
    """Give validation MAP@R in percent, by seed and then by arm."""
    found: dict[int, dict[str, float]] = {}
    for run in value["runs"]:
        found.setdefault(run["asked"]["seed"], {})[run["asked"]["arm"]] = 100 * run["found"]["validation"]
    return found


def arm_of(mu: float) -> str:
    """Name the arm of a mu.

    Example:
        >>> arm_of(1.0)
        'c2 gsp mu 1'
    """
    return f"c2 gsp mu {mu:g}"


def fall(value: dict[str, Any], mus: Sequence[float]) -> list[float]:
    """Give how far small mu are ahead of large ones on average, for every seed that all of them were trained with."""
    small = [arm_of(mu) for mu in mus if mu <= MOST_SMALL]
    large = [arm_of(mu) for mu in mus if mu >= LEAST_LARGE]
    return [
        mean(reached[arm] for arm in small) - mean(reached[arm] for arm in large)
        for reached in by_seed(value).values()
        if all(arm in reached for arm in (*small, *large))
    ]


def apart_from_average_pooling(value: dict[str, Any], mus: Sequence[float]) -> list[float]:
    """List the mu whose difference from average pooling, seed by seed, is beyond its interval."""
    found = []
    for mu in mus:
        pairs = [
            reached[arm_of(mu)] - reached["c2 gap"]
            for reached in by_seed(value).values()
            if arm_of(mu) in reached and "c2 gap" in reached
        ]
        if pairs and verdict(seed_difference(pairs)) != "cannot tell":
            found.append(mu)
    return found


def told(value: dict[str, Any], mus: Sequence[float]) -> str:
    """Say how small values of mu compare with large ones and with average pooling; nothing until all are trained."""
    arms = {arm["arm"]: arm for arm in value["arms"]}
    falls = fall(value, mus)
    if not falls or any(arm_of(mu) not in arms for mu in mus):
        return ""
    reached = {mu: float(arms[arm_of(mu)]["validation_map"]) for mu in mus}
    best, worst = max(reached, key=reached.__getitem__), min(reached, key=reached.__getitem__)
    found = seed_difference(falls)
    seeds = "one seed" if len(falls) == 1 else f"{len(falls)} seeds"
    said = {
        "ahead": "quality falls as mu grows",
        "behind": "quality grows with mu",
        "cannot tell": "whether quality falls as mu grows cannot be told",
    }[verdict(found)]
    return (
        f"**Mu up to {MOST_SMALL:g} against mu from {LEAST_LARGE:g} on, in pairs by seed ({seeds}): {in_words(found)}; "
        f"{said}.** All means lie within {reached[best] - reached[worst]:.2f} points, from {reached[worst]:.2f} "
        f"(mu {worst:g}) to {reached[best]:.2f} (mu {best:g}).{beside_average_pooling(value, mus)} "
        "All seeds share one held-out part: these intervals say nothing of other classes."
    )


def beside_average_pooling(value: dict[str, Any], mus: Sequence[float]) -> str:
    """Give the figure of average pooling, and say which mu can be told from it; nothing where it was not trained."""
    gap = next((arm for arm in value["arms"] if arm["arm"] == "c2 gap"), None)
    if gap is None:
        return ""
    apart = apart_from_average_pooling(value, mus)
    which = ", ".join(f"{mu:g}" for mu in apart)
    known = f"only mu {which} can be told from it" if apart else "no mu can be told from it"
    return f" Average pooling reaches {validation_figure(gap)}: {known}."


def seen(value: dict[str, Any], mus: Sequence[float]) -> Verdict:
    """Judge the promise: the fall from small to large mu is beyond its interval, and more than small mu differ by."""
    falls = fall(value, mus)
    if not falls:
        return Verdict("cannot tell", "no seed has been trained with every mu")
    found = seed_difference(falls)
    word = verdict(found)
    small = [
        arm["validation_map"] for arm in value["arms"] if arm["arm"] in {arm_of(m) for m in mus if m <= MOST_SMALL}
    ]
    span = max(small) - min(small)
    because = (
        f"mu up to {MOST_SMALL:g} ahead of mu from {LEAST_LARGE:g} on by {in_words(found)} points of validation MAP@R; "
        f"small mu lie within {span:.2f}"
    )
    if word == "cannot tell":
        return Verdict("cannot tell", because)
    if word == "behind":
        return Verdict("no", because)
    return Verdict("yes" if span < found["mean"] else "partly", because)
