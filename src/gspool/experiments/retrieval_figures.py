"""From finished trainings to figures and cells of tables: means, paired differences from GAP, joined models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gspool.evaluation import PROTOCOLS, fair_average, mean_and_std, separate_average
from gspool.evaluation.statistics import deviation, matched_difference, over_folds, with_interval
from gspool.executor.run_store import Run
from gspool.experiments.retrieval_paper import layer_value, paper_values
from gspool.experiments.retrieval_training import LARGE, LOSSES, POOLINGS, SEEDS, WIDE
from gspool.experiments.tables import cell, markdown_table, plus_minus

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor

    from gspool.evaluation import MeanStd, RunResult

Place = tuple[int, int]
Row = Mapping[str, Any]


def place(run: Run) -> Place:
    """Return fold and seed; runs of two variants in one place are a pair: same classes, batches and crops."""
    return run.asked["fold"], run.asked["seed"]


def by_variant(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs by the names of their variants, both in the order in which they come."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.asked["variant"], []).append(run)
    return found


def runs_of(value: Mapping[str, Any]) -> dict[str, list[Run]]:
    """Return the trainings of a result by variant."""
    return by_variant(Run(each["asked"], each["found"], each["origin"]) for each in value["runs"])


def paired_difference(
    ours: Sequence[Run] | None, theirs: Sequence[Run] | None, metric: str = "map@r"
) -> dict[str, Any] | None:
    """Compare two variants run by run, in points; None where they share no fold and seed.

    ``metric`` is one of the test classes, or "validation" for what was monitored on the validation classes.
    """
    return matched_difference(_values(ours or (), metric), _values(theirs or (), metric), scale=100)


def _values(runs: Sequence[Run], metric: str) -> dict[Place, float]:
    if metric != "validation":
        return {place(run): run.found["metrics"][metric] for run in runs}
    return {place(run): run.found["validation"] for run in runs if run.found["validation"] is not None}


def in_percent(value: MeanStd) -> dict[str, float]:
    """Return a mean and its deviation as results hold them."""
    return {"mean": 100 * value.mean, "std": 100 * value.std}


def variant_figures(runs: Sequence[Run], gap: Sequence[Run]) -> dict[str, Any]:
    """Return the figures of one variant in percent: means over its runs, and its paired difference from GAP."""
    asked, metrics = runs[0].asked, mean_and_std([run.found["metrics"] for run in runs])
    entropies = [run.found["entropy"] for run in runs if run.found["entropy"] is not None]
    watched = [run.found["validation"] for run in runs if run.found["validation"] is not None]
    is_gap = asked == gap[0].asked
    test, validation = (None if is_gap else paired_difference(runs, gap, each) for each in ("map@r", "validation"))
    endings = [run.found["ending"] for run in runs]
    return {
        **{name: asked[name] for name in ("variant", "loss", "pooling", "setting")},
        "runs": len(runs),
        "folds": sorted({run.asked["fold"] for run in runs}),
        "seeds": sorted({run.asked["seed"] for run in runs}),
        "map": in_percent(metrics["map@r"]) | _equal_folds(runs, "map@r"),
        "p1": in_percent(metrics["p@1"]) | _equal_folds(runs, "p@1"),
        "recall": {name: 100 * each.mean for name, each in metrics.items() if name.startswith("r@")},
        "validation_map": 100 * fmean(watched) if watched else None,
        "validation_std": 100 * deviation(watched),
        "entropy": fmean(entropies) if entropies else None,
        "mean_weights": mean_map([run.found.get("mean_weights") for run in runs]),
        "learned": {name: fmean(run.found["learned"][name] for run in runs) for name in runs[0].found["learned"]},
        "difference_from_gap": test,
        "validation_difference": validation,
        "endings": {word: endings.count(word) for word in ("patience", "max_steps")},
        **{f"mean_{name}": fmean(run.found[name] for run in runs) for name in ("steps", "best_step", "seconds")},
        "joined": None,
        "best_run": {"metrics": max((run.found["metrics"] for run in runs), key=lambda each: each["p@1"])},
    }


def _equal_folds(runs: Sequence[Run], metric: str) -> dict[str, float]:
    """Return the mean over means of folds where some folds have fewer runs: folds differ by more than seeds do."""
    folds: dict[int, list[float]] = {}
    for run in runs:
        folds.setdefault(run.asked["fold"], []).append(run.found["metrics"][metric])
    if len({len(values) for values in folds.values()}) == 1:
        return {}
    return {"mean": 100 * fmean(fmean(values) for values in folds.values())}


def mean_map(maps: Sequence[str | None]) -> list[float] | None:
    """Average the weight of every place over the runs that have a map; None where none has, or sizes differ.

    Example:
        >>> mean_map(["1.000 1.000", None, "0.500 1.500"]), mean_map([None])
        ([0.75, 1.25], None)
    """
    kept = [[*map(float, line.split())] for line in maps if line]
    if not kept or len({len(one) for one in kept}) > 1:
        return None
    return [fmean(weights) for weights in zip(*kept, strict=True)]


def _whole_seeds(places: Iterable[Place], folds: int) -> list[int]:
    """Return the seeds that every fold was trained with: only their models can be joined."""
    made = {*places}
    return sorted({seed for _, seed in made if all((fold, seed) in made for fold in range(folds))})


def separate_figures(runs: Sequence[Run], folds: int) -> dict[str, Any] | None:
    """Return what single models reach over all combinations of one repeat a fold; None without a whole repeat."""
    seeds = _whole_seeds(map(place, runs), folds)
    if not seeds:
        return None
    average = separate_average({place(run): run.found["metrics"] for run in runs if run.asked["seed"] in seeds})
    return {"repeats": len(seeds), "map": in_percent(average["map@r"]), "p1": in_percent(average["p@1"])}


def joined_figures(
    results: Mapping[Place, RunResult],
    folds: int,
    labels: Int64[Tensor, " Q"],
    gallery: Int64[Tensor, " G"] | None = None,
    device: str = "cpu",
) -> dict[str, Any] | None:
    """Return what the models of all folds reach joined (512D), over all combinations of one repeat a fold."""
    seeds = _whole_seeds(results, folds)
    if not seeds:
        return None
    whole = {(fold, seed): results[fold, seed] for fold in range(folds) for seed in seeds}
    average = fair_average(whole, labels, gallery, device=device)
    return {
        "repeats": len(seeds),
        "combinations": len(average.combinations),
        "map_512D": in_percent(average.concatenated["map@r"]),
        "p1_512D": in_percent(average.concatenated["p@1"]),
    }


def figures_of(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the variants of a result with what single models reach over repeats, which follows from the runs."""
    runs, protocol = runs_of(value), PROTOCOLS[value["protocol"]]
    joins = protocol.report == "combinations"
    return [
        {**each, "separate": separate_figures(runs.get(each["variant"], []), protocol.folds) if joins else None}
        for each in value["variants"]
    ]


def over_shared_seeds(value: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return validation figures of these variants over the seeds that all of the trained ones have.

    One seed differs from another by as much as settings do. Where no seed is shared, figures are those of all seeds.
    """
    runs = {name: own for name, own in runs_of(value).items() if name in names}
    seeds = [{run.asked["seed"] for run in own} for own in runs.values()]
    shared = set.intersection(*seeds) if seeds else set()
    found = {}
    for name, own in runs.items():
        kept = [run for run in own if run.asked["seed"] in shared] or own
        entropies = [run.found["entropy"] for run in kept if run.found["entropy"] is not None]
        found[name] = {
            "validation_map": 100 * fmean(run.found["validation"] for run in kept),
            "entropy": fmean(entropies) if entropies else None,
            "runs": len(kept),
        }
    return found


def validation_by_seed(value: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, float]]:
    """Return validation MAP@R of variants in percent, for every seed that all of them were trained with."""
    found: dict[int, dict[str, float]] = {}
    for name, runs in runs_of(value).items():
        for run in runs if name in names else ():
            found.setdefault(run.asked["seed"], {})[name] = 100 * run.found["validation"]
    return [each for each in found.values() if len(each) == len(names)]


def table(rows: Sequence[Row], text_columns: int = 1) -> str:
    """Write rows as a Markdown table, floats with two digits; a note where there are none."""
    return markdown_table(rows, ".2f", text_columns=text_columns) if rows else "*No runs yet.*"


def losses_of(value: Mapping[str, Any]) -> list[str]:
    """Return the losses of a result, those that the paper compares first."""
    return [*dict.fromkeys(row["loss"] for row in in_order(value["variants"]))]


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the rows of a loss together, and in each the paper's settings before others, GAP and GSP first."""
    losses = [*LOSSES, *sorted({row["loss"] for row in rows})]
    layers = [*POOLINGS, *(row["pooling"] for row in rows)]
    return sorted(rows, key=lambda row: (losses.index(row["loss"]), row["setting"] != "", layers.index(row["pooling"])))


def kind_of(row: Row) -> str:
    """Return what a row of the benchmark shows: losses (GAP and GSP as in the paper), other layers, or settings.

    Settings of other layers are sizes that the paper's table names.
    """
    return "layers" if row["pooling"] not in ("gap", "gsp") else "settings" if row["setting"] else "losses"


def single_models(row: Row, metric: str) -> str:
    """Write a metric of single models (128D), with its deviation where every fold has the same two or more repeats.

    Where folds are missing the deviation would be that of folds, which is greater than that of repeats.
    """
    found = row["separate"]
    if found is None or found["repeats"] < 2 or found["repeats"] * len(row["folds"]) != row["runs"]:
        return cell(row[metric]["mean"], ".2f")
    return plus_minus(found[metric]["mean"], found[metric]["std"]) + _few(found)


def joined_models(row: Row) -> str:
    """Write MAP@R of the joined models of all folds (512D); empty where no repeat has all its embeddings."""
    joined = row["joined"]
    if joined is None:
        return ""
    if joined["combinations"] == 1:
        # Where single models have one repeat as well, the column of runs shows it.
        more = (row["separate"] or joined)["repeats"] > 1
        return cell(joined["map_512D"]["mean"], ".2f") + " (one repeat)" * more
    return plus_minus(joined["map_512D"]["mean"], joined["map_512D"]["std"]) + _few(joined)


def _few(found: Row) -> str:
    return f" ({found['repeats']} repeats)" if found["repeats"] < len(SEEDS) else ""


def comparison(
    names: Row, ours: Sequence[Run] | None, theirs: Sequence[Run] | None, heading: str = "MAP@R (95 %)"
) -> list[dict[str, Any]]:
    """Return a row that compares two variants in pairs of runs, with 95 % intervals over pairs and over folds.

    ``names`` are its first cells, and ``heading`` is that of MAP@R on the test classes. Without a pair there is no row.
    """
    test, watched = (paired_difference(ours, theirs, metric) for metric in ("map@r", "validation"))
    if test is None:
        return []
    row = {
        **names,
        heading: with_interval(test),
        "over folds (95 %)": interval_over_folds(test),
        "ahead": ahead(test),
        "deviation of a pair": test["std"] if test["pairs"] > 1 else None,
        "validation (95 %)": with_interval(watched),
        "validation, over folds (95 %)": interval_over_folds(watched),
    }
    return [row]


def ahead(found: Row | None) -> str:
    """Write how many pairs are ahead."""
    return "" if found is None else f"{found['ahead']} of {found['pairs']}"


def interval_over_folds(found: Row | None) -> str:
    """Write the mean over folds with its interval; empty with fewer than two folds.

    Empty also with one pair a fold, where it is the interval over pairs.
    """
    return with_interval(over_folds(found)) if found and 1 < found["folds"] < found["pairs"] else ""


def names_of_row(row: Row) -> dict[str, str]:
    """Return loss, pooling and setting."""
    setting = f"{row['setting']} ({WIDE}D)" if row["setting"] == LARGE else row["setting"] or "paper's"
    return {"loss": row["loss"], "pooling": row["pooling"], "setting": setting}


def paper_cells(data: str, row: Row) -> dict[str, Any]:
    """Return the cells of a row at the paper's settings in the fair protocol, the paper's values beside ours."""
    key = (row["loss"], row["pooling"], row["setting"])
    paper = None if row["setting"] else paper_values(data, row["loss"], row["pooling"])
    return {
        "MAP@R 128D": single_models(row, "map"),
        "paper": plus_minus(paper.map, paper.std) if paper else layer_value(*key) if data == "cub" else None,
        "MAP@R 512D": joined_models(row),
        "paper 512D": paper.map_joined if paper else None,
        "P@1 128D": single_models(row, "p1"),
        "paper P@1": paper.p1 if paper else None,
    }


def run_cells(row: Row) -> dict[str, Any]:
    """Return the flatness of the weights, the mean best step, and the number of runs."""
    entropy, step = cell(row["entropy"], ".4f"), cell(row["mean_best_step"], ".0f")
    return {"entropy": entropy, "best step": step, "runs": row["runs"]}
