"""The section about the screening: the factorial beside the paper's figures, its effects, the grids."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from gspool.experiments import screening_design as design
from gspool.experiments.benchmark.tables import number, table
from gspool.experiments.pictured import pictured
from gspool.experiments.screening_effects import Effects, effects_of, paper_effects
from gspool.experiments.screening_promise import HARDLY, LOWER_IS_BETTER, grid_of, grid_told, in_groups, parts_of
from gspool.experiments.screening_seeds import over_shared_seeds
from gspool.experiments.tuning_text import protocol_told, seeds_told

# From this entropy on, GSP pools as average pooling does.
EQUAL = 0.999


def rendered(value: dict[str, Any]) -> str:
    """Write the factorial with the paper's values beside ours, its main effects, and the grids that are there."""
    grids = [grid_table(grid_of(value, loss), loss) for loss in whole_grids(value)]
    tables = (factorial_table(value), told(value), *grids, grid_told(value))
    return "\n\n".join(part for part in tables if part)


def written(value: dict[str, Any], name: str = "screening") -> str:
    """Write what was measured, the tables, and the picture where there is enough of a grid to draw.

    The picture is called as the result is.
    """
    selects = [arm for arm in value["arms"] if arm["pooling"] == "gsp"]
    cells = [arm for loss in whole_grids(value) for arm in grid_of(value, loss).values()]
    said = (
        f"{protocol_told(value)} Ours: {seeds_told(selects)} an arm with GSP; the rows of a loss in a table, or the "
        "lines of a picture, are means over the seeds that all of them have. "
        "m is the number of prototypes, zsr the weight lambda of the zero-shot regularisation; `mu` varies mu alone, "
        "on the same held-out classes."
    )
    drawn = whole_grids(value)
    picture = pictured(
        f"{name}.png",
        "Validation MAP@R against epsilon, a line a number of prototypes",
        f"MAP@R on held-out classes against epsilon, a line for each number m of prototypes, {' and '.join(drawn)}, "
        f"{seeds_told(cells)}; mu = 0.3, lambda = 0.1. The dashed line is average pooling.",
    )
    return "\n\n".join([said, rendered(value), *([picture] if drawn else [])])


def told(value: dict[str, Any]) -> str:
    """Write a line a loss, how effects are judged, and what one seed cannot say; nothing until a factorial is whole."""
    found = {loss: each for loss in design.LOSSES if (each := effects_of(value, loss)) is not None}
    if not found:
        return ""
    lines = [effects_told(loss, each) for loss, each in found.items()]
    single = [loss for loss, each in found.items() if each.seeds < 2]
    unknown = (
        f"One seed with every corner ({' and '.join(single)}): no error of these effects is known, and nothing of the "
        "promise can be told. The embedding is drawn after the prototypes, so that another m comes with another draw: "
        f"with one seed the two effects cannot be told apart. {repeats_told(value)}"
        if single
        else ""
    )
    apart = "" if single else f" {repeats_told(value).strip()}"
    return "\n".join(lines) + f"\n\n{unknown}{rules_told(value['data'])}{apart}{alike_told(value)}"


def repeats_told(value: dict[str, Any]) -> str:
    """Say how far two seeds lie apart in the corners that have several: what an effect of one seed is to be held to.

    Example:
        >>> corner = design.factorial_arms()[1].name
        >>> asked = {"arm": corner, "loss": "c2", "fold": 0}
        >>> runs = [{"asked": {**asked, "seed": seed}, "found": {"validation": 0.4 + 0.01 * seed}} for seed in (0, 2)]
        >>> repeats_told({"runs": runs})
        'In 1 corner with several seeds (c2) these lie 2.00 points apart on average, 2.00 at most. '
    """
    reached: dict[str, list[float]] = {}
    corners = {arm.name: arm.loss for arm in design.factorial_arms() if arm.pooling == "gsp"}
    for run in value["runs"]:
        reached.setdefault(run["asked"]["arm"], []).append(100 * run["found"]["validation"])
    several = {name: each for name, each in reached.items() if name in corners and len(each) > 1}
    if not several:
        return ""
    apart = [max(each) - min(each) for each in several.values()]
    losses = " and ".join(dict.fromkeys(corners[name] for name in several))
    return (
        f"In {len(apart)} corner{'s' * (len(apart) > 1)} with several seeds ({losses}) these lie {fmean(apart):.2f} "
        f"points apart on average, {max(apart):.2f} at most. "
    )


def effects_told(loss: str, found: Effects) -> str:
    """Write the effects of one loss, those without its lowest corner, which stand, and what of the promise is seen."""
    whole = ", ".join(f"{factor} {found.told(factor)}" for factor in found.whole)
    without = ", ".join(f"{factor} {fmean(points):+.2f}" for factor, points in found.without.items())
    standing = found.standing()
    same = "which is that of" if found.lowest == paper_effects(loss).lowest else "which is not that of"
    if found.seeds < 2:
        # One seed is no ground for saying that an effect stands.
        which = f"of {', '.join(standing)} the effect keeps" if standing else "no effect keeps"
        seeds, said = "", f"With one seed, {which} sign and size without that corner."
    else:
        stands = f"Of {', '.join(standing)} the effect stands" if standing else "No effect stands"
        seeds, said = f", {found.seeds} seeds", f"**{stands}.** Promised, {in_groups(parts_of(found))}."
    return (
        f"- {loss}, from the low level to the high, points of MAP@R{seeds}: {whole}. The lowest corner, "
        f"{found.lowest.variant}, {same} the paper's table, lies {found.below:.2f} below the mean of the others; "
        f"without it, by least squares over these: {without}. {said}"
    )


def rules_told(data: str) -> str:
    """Say when an effect stands, when it is seen, and how little is hardly; with the paper's effects as a measure."""
    where = "" if data == design.DATA else f", on {design.DATA},"
    return (
        "An effect keeps sign and size without the lowest corner if that leaves its sign, and its size within a factor "
        f"of two; with several seeds it then *stands*. With these, lower {' and '.join(LOWER_IS_BETTER)} count as "
        "better where the effect stands and its 95 % interval over seeds lies below 0, epsilon as what matters most "
        "where its effect exceeds every other beyond the interval; the prototypes *hardly* count where their interval "
        f"lies within {HARDLY:g} points to either side of 0. What does not stand is *made by one corner*: its interval "
        "leaves 0 out, but corners are where all factors meet, and it cannot be given to one of them. The paper's "
        f"table{where} gives, without an error: {'; '.join(map(paper_told, design.LOSSES))}.{other_side_told()}"
    )


def paper_told(loss: str) -> str:
    """Write the effects of the paper's own table, and those without its lowest corner.

    Example:
        >>> paper_told("pnca").partition(" (")[0]
        'pnca prototypes -0.27, mu +0.11, epsilon -0.67, zsr +0.17'
    """
    paper = paper_effects(loss)
    whole, without = (
        ", ".join(f"{factor} {points:+.2f}" for factor, (points,) in each.items())
        for each in (paper.whole, paper.without)
    )
    return f"{loss} {whole} (without its lowest corner, {paper.lowest.variant}: {without})"


def other_side_told() -> str:
    """Name the losses in whose row of the paper's table lower is not better, against what the paper says of it."""
    told = [
        f"{' and '.join(there)} with {loss}"
        for loss in design.LOSSES
        if (there := [factor for factor in LOWER_IS_BETTER if paper_effects(loss).whole[factor][0] > 0])
    ]
    return f" There a higher {', and a higher '.join(told)} is better, whatever the text says." if told else ""


def alike_told(value: dict[str, Any]) -> str:
    """Say how far settings of the grids lie apart that pool alike: a yardstick for effects without an error."""
    told_of = []
    for loss in design.LOSSES:
        own = [arm for arm in grid_of(value, loss).values() if arm["pooling"] == "gsp"]
        equal = [arm["validation_map"] for arm in own if arm["entropy"] >= EQUAL]
        if len(equal) > 1:
            told_of.append(f"{max(equal) - min(equal):.2f} points with {loss} ({len(equal)} settings)")
    if not told_of:
        return ""
    spans = " and ".join(told_of)
    return (
        f" Settings of the grid that pool alike, with weights all but equal (entropy from {EQUAL:g} on), still span "
        f"{spans}."
    )


def factorial_table(value: dict[str, Any]) -> str:
    """Write a row an arm of the factorial, average pooling first; beside the paper's where the data are the same."""
    rows = []
    for loss in design.LOSSES:
        paper = design.paper_figures(loss)
        arms = [arm for arm in design.factorial_arms() if arm.loss == loss]
        found = over_shared_seeds(value, [arm.name for arm in arms])
        for arm in arms:
            ours = found.get(arm.name)
            rows.append(
                {
                    "loss": loss,
                    "pooling": arm.pooling,
                    "setting": arm.variant,
                    "validation MAP@R": number(ours["validation_map"]) if ours else "",
                    "seeds": str(ours["runs"]) if ours else "",
                    **({"paper": number(paper[arm.name])} if value["data"] == design.DATA else {}),
                }
            )
    return table(rows)


def whole_grids(value: dict[str, Any]) -> tuple[str, ...]:
    """Name the losses of whose grid at least half has been trained; less shows nothing."""
    there = {arm["arm"] for arm in value["arms"]}
    found = []
    for loss in design.LOSSES:
        names = [arm.name for arm in design.grid_arms() if arm.loss == loss]
        if 2 * sum(name in there for name in names) >= len(names):
            found.append(loss)
    return tuple(found)


def grid_table(found: dict[str, Any], loss: str) -> str:
    """Write the grid of one loss: validation MAP@R and the entropy of the weights."""
    arms = {arm.name: arm for arm in design.grid_arms() if arm.loss == loss}
    rows = []
    for count in design.GRID_PROTOTYPES:
        row = {"loss": loss, "m": str(count), "": "MAP@R, entropy"}
        for epsilon in design.GRID_EPSILONS:
            wanted = {"prototypes": count, "mu": 0.3, "epsilon": epsilon}
            name = next(arm.name for arm in arms.values() if arm.pooling_options == wanted)
            arm = found.get(name)
            cell = f"{number(arm['validation_map'])}, {number(arm['entropy'], '.3f')}" if arm else ""
            row[f"epsilon {epsilon:g}"] = cell
        rows.append(row)
    return table(rows)
