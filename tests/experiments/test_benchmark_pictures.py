"""What the pictures of the benchmark show follows from the pairs, and each is there once it has something to show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image
from scipy import stats

from finished_runs import finished
from gspool.experiments.benchmark.arms import POOLINGS, Arm
from gspool.experiments.benchmark.combined import beside_layers
from gspool.experiments.benchmark.experiment import _draw
from gspool.experiments.benchmark.figures import arm_figures
from gspool.experiments.benchmark.forest import forests
from gspool.experiments.benchmark.overall import gains_by_fold, judged_together, over_losses
from gspool.experiments.benchmark.picture import _draw_curves
from gspool.experiments.benchmark.pictures import PICTURES, pictures_of
from gspool.experiments.benchmark.search import search_arms
from gspool.experiments.benchmark.section import render_study
from gspool.experiments.benchmark.store import Run, runs_of
from gspool.experiments.benchmark.summary_picture import _point

FOLDS = range(4)
MADE = {"curve": "100:20.00 200:21.00", "origin": {"commit": None}}


def value_of(ahead: dict[Arm, list[float]] | list[tuple[Arm, list[float]]]) -> dict[str, Any]:
    """Give a result in which arms are ahead of their GAP by so many points, a fold each."""
    pairs = [*ahead.items()] if isinstance(ahead, dict) else ahead
    runs: list[Run] = []
    arms = []
    for loss in dict.fromkeys(arm.loss for arm, _ in pairs):
        gap = finished(Arm(loss, "gap"), {(fold, 0): 0.2 + 0.01 * fold for fold in FOLDS})
        runs += gap
        arms.append({**arm_figures(gap, gap), "joined": None})
        for arm, points in (each for each in pairs if each[0].loss == loss):
            made = finished(arm, {(fold, 0): 0.2 + 0.01 * fold + gain / 100 for fold, gain in enumerate(points)})
            runs += made
            arms.append({**arm_figures(made, gap), "joined": None})
    told = [{"asked": run.asked, "found": {**run.found, **MADE}} for run in runs]
    return {"data": "cub", "protocol": "fair", "backbone": "keras/resnet50", "arms": arms, "runs": told}


GSP = [(Arm("c2", "gsp"), [1.0, 2.0, 0.0, 1.0]), (Arm("pnca", "gsp"), [0.0, 0.2, -0.2, 0.4])]


def test_losses_count_once_a_fold_and_the_paper_s_gains_are_looked_for_in_the_intervals() -> None:
    value = value_of(GSP)
    assert gains_by_fold(runs_of(value), "c2") == pytest.approx({0: 1.0, 1: 2.0, 2: 0.0, 3: 1.0})
    low, high = stats.ttest_1samp([0.5, 1.1, -0.1, 0.7], 0.0).confidence_interval(0.95)
    # The paper gains 0.94 and 0.12; ours are 1.00 +- 1.30 and 0.10 +- 0.41.
    assert over_losses(value, runs_of(value), 4) == (
        f"- all 2 losses, means over them by fold: +0.55 (95 % interval {low:+.2f} to {high:+.2f}) points of MAP@R. "
        "The paper's gains are +0.53 on average; 2 of 2 lie within our intervals over pairs. "
        "Were there no gain, one or more of 2 such intervals would leave 0 out in some 10 % of cases, if they were "
        "independent."
    )
    far = value_of([(arm, [gain + 3 for gain in gains]) for arm, gains in GSP])
    assert "0 of 2 lie within our intervals over pairs." in over_losses(far, runs_of(far), 4)
    # A loss without all folds is no part of the mean, and of one alone there is none.
    part = value_of([GSP[0], (Arm("pnca", "gsp"), [0.0, 0.2])])
    assert over_losses(part, runs_of(part), 4) == ""


def test_a_mean_over_losses_that_leaves_the_paper_s_gain_out_rules_the_promise_out() -> None:
    def judged(points: float, apart: float = 0.2, losses: tuple[str, ...] = ("c2", "pnca")) -> str:
        gains = [points + apart, points - apart, points + apart, points - apart]
        value = value_of([(Arm(loss, "gsp"), gains) for loss in losses])
        return judged_together(value, runs_of(value), 4).holds

    # The paper gains 0.94 and 0.12, 0.53 on average; intervals are 1.84 times as wide as gains lie apart.
    assert judged(0.0) == "no"
    assert judged(0.0, apart=0.4) == "cannot tell"
    assert judged(0.2, apart=0.3) == "cannot tell"
    # One loss has no mean over losses; what is ahead, or behind, is judged as before.
    assert judged(0.0, losses=("c2",)) == "cannot tell"
    assert judged(0.45) == "yes"
    assert judged(0.2, apart=0.05) == "yes"
    assert judged(-0.45) == "no"
    # A loss that the paper has not, or that lacks a fold, has no say in what is compared with the paper.
    assert judged(0.0, losses=("c2", "pnca", "c1")) == "no"
    some = value_of([*GSP, (Arm("c1", "gsp"), [9.0] * 4), (Arm("triplet", "gsp"), [9.0] * 3)])
    told = over_losses(some, runs_of(some), 4)
    assert told.startswith("- 2 of 4 losses, means over them by fold: +0.55 (")
    assert "The paper's gains are +0.53 on average; 2 of 2 lie within our intervals over pairs." in told
    value = value_of(GSP)
    because = judged_together(value, runs_of(value), 4).because
    assert " on average over 2 losses, the paper's +0.53; all this on cub with keras/resnet50" in because


def test_every_line_stands_in_one_picture_with_what_it_is_compared_with() -> None:
    # GAP with another draw of its embedding is no setting of GSP.
    apart = (Arm("ms", "gap", "drawn apart"), [0.1] * 4)
    # Nor are runs of an earlier step another setting, however far they are ahead.
    earlier = [(Arm("c2", "gsp", each), [9.0] * 4) for each in ("earlier step", "epsilon 20, earlier step")]
    settings = [*((arm, [0.1, 0.2, 0.3, 0.4]) for arm in search_arms(("c2",))[:2]), apart, *earlier]
    layers = [(Arm("c2", "gmp"), [0.5] * 4), (Arm("c2", "vlad", "64x128"), [-1.0])]
    found = forests(value_of([*GSP, *settings, *layers]))
    assert {end: [*panels] for end, (_, panels) in found.items()} == {
        "losses": ["GSP in the place of GAP"],
        "layers": ["c2"],
        "settings": ["c2"],
    }
    (losses,) = found["losses"][1].values()
    assert [line.label for line in losses] == ["c2, 4 pairs", "pnca, 4 pairs"]
    assert [line.beside for line in losses] == pytest.approx([21.52 - 20.58, 20.75 - 20.63])
    gmp, vlad = found["layers"][1]["c2"]
    assert (gmp.label, vlad.label) == ("gmp, 4 pairs", "vlad 64x128, 1 pair")
    assert (gmp.beside, vlad.beside) == pytest.approx((20.66 - 20.58, 16.67 - 20.58))
    sharp, learned = found["settings"][1]["c2"]
    assert learned.label == "gsp learned, 4 pairs"
    assert sharp.label == "gsp epsilon 20, 4 pairs"
    # What was watched on validation classes is the same here as on test classes.
    assert sharp.beside == pytest.approx(sharp.found["mean"])


def test_pictures_are_written_and_shown_where_there_is_something_to_show(tmp_path: Path) -> None:
    value = value_of(GSP)
    _draw(value, tmp_path / "benchmark_cub.png")
    names = {"benchmark_cub.png", "benchmark_cub_summary.png", "benchmark_cub_losses.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    shown = "\n".join(pictures_of("benchmark_cub", value).values())
    assert {name for name in names if name in shown} == names
    assert shown.count("![") == len(names)
    settings = [(search_arms(("c2",))[0], [0.1, 0.2])]
    more = value_of([*GSP, (Arm("c2", "delf"), [0.1] * 4), *settings])
    more["arms"][1]["mean_weights"] = [0.5, 1.5, 1.5, 0.5]
    _draw(more, tmp_path / "benchmark_cub.png")
    assert len([*tmp_path.iterdir()]) == len(PICTURES) == len(pictures_of("benchmark_cub", more))


def test_curves_are_means_over_the_places_that_gap_and_gsp_share() -> None:
    from matplotlib import pyplot

    value = value_of([(Arm("c2", "gsp"), [1.0, 1.0, 1.0]), (Arm("c2", "delf"), [1.0] * 4), (Arm("c2", "gmp"), [1.0])])
    for run in value["runs"]:
        # The fourth fold, which GSP lacks, would pull the mean of the others up.
        run["found"]["curve"] = f"100:{90 if run['asked']['fold'] == 3 else 20}.00"
    _, axes = pyplot.subplots()
    _draw_curves(runs_of(value), value["arms"], "cub", axes)
    assert axes.get_title() == "cub, c2, means of 3 runs"
    assert {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()} == {
        "gap": [20.0],
        "gsp": [20.0],
        "delf": [20.0],
    }
    pyplot.close("all")


def test_every_picture_stands_once_and_after_the_table_that_it_draws() -> None:
    settings = [(search_arms(("c2",))[0], [0.1, 0.2])]
    value = value_of([*GSP, (Arm("c2", "delf"), [0.1] * 4), *settings])
    value["arms"][2]["mean_weights"] = [0.5, 1.5, 1.5, 0.5]
    pictures = pictures_of("benchmark_cub", value)
    shown = render_study(value, pictures)
    assert [shown.count(each) for each in pictures.values()] == [1] * len(PICTURES)
    order = [
        "The paper's settings, loss",
        "_losses",
        "Other layers",
        "_layers",
        "Other settings",
        "_settings",
        "_looks",
    ]
    places = [shown.index(pictures.get(each, each)) for each in order]
    assert places == sorted(places)
    assert pictures["_looks"].endswith("No run of GSP at the paper's settings has with c2 and pnca.*")
    value["arms"][1]["mean_weights"] = [1.0] * 4
    assert pictures_of("benchmark_cub", value)["_looks"].endswith("has with pnca.*")


def test_gsp_beside_other_layers_is_compared_in_pairs_with_what_the_paper_compares() -> None:
    gains = {"gmp": [0.5] * 4, "gmp+gsp": [1.5, 1.7, 1.4, 1.6], "delf": [2.0] * 4, "gsp": [1.5, 1.4, 1.6, 1.5]}
    told = beside_layers(runs_of(value_of([(Arm("c2", name), gain) for name, gain in gains.items()])))
    low, high = stats.ttest_1samp([1.0, 1.2, 0.9, 1.1], 0.0).confidence_interval(0.95)
    assert f"GMP+GSP less GMP c2 +1.05 (95 % interval {low:+.2f} to {high:+.2f}); GSP less DeLF c2 -0.50" in told
    assert "On the promised side of 0 lie 1 of 2 intervals, on the other 1;" in told
    assert beside_layers(runs_of(value_of(GSP))) == ""


def test_marks_of_many_layers_stay_inside_the_summary(tmp_path: Path) -> None:
    layers = [(Arm(loss, name), [0.5] * 4) for loss in ("c2", "pnca") for name in POOLINGS if name != "gap"]
    rare = [(Arm("c2", name), [-9.0]) for name in ("crow", "solar", "tsmk", "cbam", "gsop", "weldon", "gemax")]
    for name, arms in (("few", layers), ("many", [*layers, *rare])):
        _draw(value_of(arms), tmp_path / name / "x.png")
    few, many = (image.imread(tmp_path / name / "x_summary.png") for name in ("few", "many"))
    assert np.array_equal(few, many)


def test_layers_of_fewer_repeats_stand_as_far_from_gap_as_in_their_pairs() -> None:
    places = [(fold, seed) for fold in FOLDS for seed in range(2)]
    gap_runs = finished(Arm("c2", "gap"), {place: 0.2 if place[1] else 0.22 for place in places})
    layer_runs = finished(Arm("c2", "gmp"), {(fold, 0): 0.215 for fold in FOLDS})
    gap, layer = arm_figures(gap_runs, gap_runs), arm_figures(layer_runs, gap_runs)
    for arm, repeats in ((gap, 2), (layer, 1)):
        arm["separate"] = {"repeats": repeats, "map": {"mean": arm["map"]["mean"], "std": 0.1}}
    # Beside GAP of the same seed it is half a point behind; its mean is above that of GAP over both seeds.
    assert layer["map"]["mean"] > gap["map"]["mean"]
    point = _point("cub", layer, gap, "ours")
    assert point is not None
    assert point.mean == pytest.approx(gap["map"]["mean"] - 0.5)
    assert point.whole
