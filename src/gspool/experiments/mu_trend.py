"""Whether quality falls as mu grows: small values of mu against large ones, seed by seed, wherever mu is cut in two."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression, mean
from typing import Any, NamedTuple

from gspool.experiments.benchmark.tables import validation_figure
from gspool.experiments.experiment import Verdict
from gspool.experiments.paired import in_words, seed_difference, verdict

# The paper advises this mu, and says that lower ones do alike: small mu end here or further up.
MOST_SMALL = 0.3


class Trend(NamedTuple):
    """How quality goes with mu, each as a mean over seeds with its error, positive where it falls.

    ``cuts`` say how far all mu up to one are ahead of all larger ones; ``slope`` by how much quality falls from mu 0 to
    mu 1 on the straight line that is nearest to all of them.
    """

    cuts: dict[float, dict[str, Any]]
    slope: dict[str, Any]

    @property
    def words(self) -> set[str]:
        """What the cuts and the slope say, each by itself."""
        return {verdict(each) for each in (*self.cuts.values(), self.slope)}

    def counted(self) -> str:
        """Write how many cuts tell a fall, and whether the slope does."""
        told_by = sum(verdict(each) == "ahead" for each in self.cuts.values())
        by_slope = "and" if verdict(self.slope) == "ahead" else "not"
        cuts = f"{len(self.cuts)} cuts between neighbouring mu from {min(self.cuts):g} on"
        return f"by {told_by} of {cuts}, {by_slope} by the slope over all"


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


def trend(value: dict[str, Any], mus: Sequence[float]) -> Trend | None:
    """Compare small mu with large ones over all seeds that every mu was trained with; None where there is none.

    The paper does not say where small mu end, so they are cut off between all neighbours from `MOST_SMALL` on.
    """
    seeds = [
        [reached[arm_of(mu)] for mu in mus]
        for reached in by_seed(value).values()
        if all(arm_of(mu) in reached for mu in mus)
    ]
    if not seeds:
        return None
    cuts = {
        mus[count - 1]: seed_difference([mean(each[:count]) - mean(each[count:]) for each in seeds])
        for count in range(sum(mu <= MOST_SMALL for mu in mus), len(mus))
    }
    return Trend(cuts, seed_difference([-linear_regression(mus, each).slope for each in seeds]))


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
    arms = {arm["arm"] for arm in value["arms"]}
    found = trend(value, mus)
    if found is None or any(arm_of(mu) not in arms for mu in mus):
        return ""
    count = found.slope["pairs"]
    seeds = "one seed" if count == 1 else f"{count} seeds"
    cuts = "; ".join(f"up to {cut:g} {in_words(each)}" for cut, each in found.cuts.items())
    return (
        f"**{in_short(found)}** Small mu less all larger ones, in pairs by seed ({seeds}): {cuts}. On the straight "
        f"line that is nearest to all mu, quality falls from mu 0 to mu 1 by {in_words(found.slope)}. Where small mu "
        f"end is our choice; the paper advises {MOST_SMALL:g} and says that lower ones do alike. "
        f"{means_told(value, mus)}{beside_average_pooling(value, mus)} All seeds share one held-out "
        "part: these intervals say nothing of other classes. None is corrected for the number of cuts."
    )


def in_short(found: Trend) -> str:
    """Say in one sentence whether quality falls."""
    if found.words == {"ahead"}:
        return "Quality falls as mu grows, wherever small mu end."
    if "ahead" in found.words:
        return f"Whether quality falls as mu grows depends on where small mu end: a fall is told {found.counted()}."
    if "behind" in found.words:
        return "Quality does not fall as mu grows: nothing tells a fall, and something a rise."
    return "Whether quality falls as mu grows cannot be told, wherever small mu end."


def means_of(value: dict[str, Any], mus: Sequence[float]) -> dict[float, float]:
    """Give the mean validation MAP@R by mu."""
    reached = {arm["arm"]: float(arm["validation_map"]) for arm in value["arms"]}
    return {mu: reached[arm_of(mu)] for mu in mus}


def means_told(value: dict[str, Any], mus: Sequence[float]) -> str:
    """Say between what all means lie, and that the lowest is not that of the largest mu, where it is not."""
    reached = means_of(value, mus)
    best, worst = max(reached, key=reached.__getitem__), min(reached, key=reached.__getitem__)
    last = "" if worst == mus[-1] else f"; the largest mu, {mus[-1]:g}, is not the lowest: {reached[mus[-1]]:.2f}"
    return (
        f"All means lie within {reached[best] - reached[worst]:.2f} points, from {reached[worst]:.2f} (mu {worst:g}) "
        f"to {reached[best]:.2f} (mu {best:g}){last}."
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
    """Judge the promise: every cut and the slope tell a fall, and it is more than small mu differ by.

    It holds in part where only some of them tell it: the choice of a cut must not decide.
    """
    found = trend(value, mus)
    if found is None:
        return Verdict("cannot tell", "no seed has been trained with every mu")
    reached = means_of(value, mus)
    small = [mean for mu, mean in reached.items() if mu <= MOST_SMALL]
    span = max(small) - min(small)
    first, fall = next(iter(found.cuts.items()))
    because = (
        f"a fall of validation MAP@R is told {found.counted()}: mu up to {first:g} less larger ones {in_words(fall)} "
        f"points, fall of the line from mu 0 to 1 {in_words(found.slope)}; the lowest mean is that of mu "
        f"{min(reached, key=reached.__getitem__):g}; small mu lie within {span:.2f}"
    )
    if "ahead" not in found.words:
        return Verdict("no" if "behind" in found.words else "cannot tell", because)
    return Verdict("yes" if found.words == {"ahead"} and span < fall["mean"] else "partly", because)
