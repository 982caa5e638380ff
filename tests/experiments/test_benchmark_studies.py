"""Studies on a benchmark: components, mu, screening, computation; each in its tiny version, and its arithmetic."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from gspool.experiments import (
    classification,
    components,
    components_steps,
    computation,
    computation_section,
    mu,
    mu_trend,
    registry,
    screening,
    screening_design,
    screening_effects,
    screening_promise,
    screening_section,
)
from gspool.experiments.benchmark import experiment as benchmark
from gspool.experiments.benchmark import study, study_pictures
from gspool.experiments.benchmark.arms import LOSSES, Arm, settings_of
from gspool.experiments.benchmark.kept_rows import draws_told, earlier_steps_told
from gspool.experiments.benchmark.runs import draws_apart
from gspool.experiments.benchmark.stand_in import made_tiny, stand_in
from gspool.experiments.benchmark.store import Run
from gspool.experiments.experiment import NOT_RUN, RunOptions
from gspool.experiments.screening_design import corner_arms
from gspool.provenance import read_result
from gspool.training.build import build_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    return RunOptions(seeds=(0,), results=tmp_path / "r", work=tmp_path / "w", images=tmp_path / "i", quick=True)


@pytest.mark.parametrize("module", [components, mu, screening, computation])
def test_what_has_not_been_run_is_said_so(module, tmp_path: Path) -> None:
    assert module.EXPERIMENT.render(tmp_path) == NOT_RUN


def test_components_show_every_combination(options: RunOptions) -> None:
    chosen = replace(options, settings=replace(components.StudySettings(), folds="1"))
    components.run(chosen)
    value = read_result(options.results / "components.json")["value"]
    by_arm = {arm["arm"]: arm for arm in value["arms"]}
    assert set(by_arm) == set(components.MARKS)
    # With mu = 1 every token weighs the same, and the attributes still learn.
    assert by_arm["c2 gsp mu 1"]["entropy"] == pytest.approx(1.0, abs=1e-6)
    assert by_arm["c2 gsp"]["entropy"] < 0.999
    shown = components.EXPERIMENT.render(options.results)
    assert all(paper in shown for paper in ("20.58", "20.85", "21.08", "21.52", "27.12"))
    assert components.EXPERIMENT.unfinished(options.results).endswith("of 48 trainings")
    named = {each.what.rpartition(", ")[2]: each.paper for each in components.headlines(value)}
    assert named == {"neither": "20.58", "GSP": "20.85", "ZSR": "21.08", "both": "21.52"}


@pytest.mark.parametrize("name", ["benchmark_cub", "benchmark_cub_conventional", "components", "mu", "screening"])
def test_results_of_the_project_are_written_anew_as_they_are(
    name: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without embeddings, as in a fresh clone, `gspool reproduce NAME --train false` does not change a result."""
    for module in (benchmark, study):
        monkeypatch.setattr(module, "labels_of", lambda study, options: stand_in())
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    path = tmp_path / f"{name}.json"
    path.write_bytes((project / "results" / path.name).read_bytes())
    made_by, _, protocol = name.partition("_cub")
    experiment = registry.find(made_by)
    more = {"protocol": "conventional"} if protocol else {}
    settings = experiment.settings(train=False, **more)
    experiment.run(RunOptions(results=tmp_path, work=tmp_path / "w", images=tmp_path / "i", settings=settings))
    assert path.read_text() == (project / "results" / path.name).read_text()


@pytest.mark.parametrize("module", [components, mu, screening])
def test_other_data_have_a_part_of_their_own(module, tmp_path: Path, project: Path) -> None:
    usual = json.loads((project / "results" / f"{module.FILE}.json").read_text())
    other = {**usual, "value": {**usual["value"], "data": "cars196"}}
    (tmp_path / f"{module.FILE}_cars196.json").write_text(json.dumps(other))
    alone = module.EXPERIMENT.render(tmp_path)
    assert alone.startswith("**cars196, keras/resnet50.**\n\n")
    assert f"*results/{module.FILE}_cars196.json: " in alone
    (tmp_path / f"{module.FILE}.json").write_text(json.dumps(usual))
    both = module.EXPERIMENT.render(tmp_path)
    assert both.endswith(alone)
    assert both.startswith(module.EXPERIMENT.render(project / "results"))
    if module is not components:
        assert f"images/{module.FILE}.png" in both
        assert f"images/{module.FILE}_cars196.png" in alone
        assert f"images/{module.FILE}.png" not in alone


def test_figures_of_the_paper_stand_beside_those_of_the_same_data(project: Path) -> None:
    value = read_result(project / "results" / "screening.json")["value"]
    assert "| 40.63 |" in screening_section.rendered(value)
    other = screening_section.rendered({**value, "data": "cars196"})
    assert "| 40.63 |" not in other
    assert "The paper's table, on cub, gives" in other
    assert "The paper's grid, on cub, is best" in other


# How far each of twelve pairs of runs is off the mean; the 95 % interval of a difference is then 0.33 to either side.
OFF = [-0.5, 0.5] * 6


def component_runs(neither: float, gsp: float, zsr: float, both: float, repeats: int = 3) -> dict:
    """Four rows of runs with these means; ``both`` swings with ``OFF``, ``gsp`` and ``zsr`` with it in other turns."""
    swings = ([0.0] * 12, OFF, OFF[:6] + OFF[:5:-1], [-each for each in OFF])
    means = dict(zip(components.NAMES, (neither, gsp, zsr, both), strict=True))
    runs = [
        {
            "asked": {"arm": arm, "fold": fold, "seed": seed},
            "found": {"metrics": {"map@r": (mean + swing[4 * seed + fold]) / 100}, "origin": {"commit": "a"}},
        }
        for (arm, mean), swing in zip(means.items(), swings, strict=True)
        for seed in range(repeats)
        for fold in range(4 if repeats > 1 else 1)
    ]
    return {"data": "cub", "runs": runs, "arms": [{"arm": arm, "entropy": 0.99} for arm in means]}


def test_only_what_is_beyond_its_interval_is_said_to_be_ahead() -> None:
    value = component_runs(20.0, 20.2, 20.25, 20.6)
    told = components.told(value)
    assert "GSP +0.20 (95 % interval -0.13 to +0.53), ZSR +0.25" in told
    assert "only both together can be told from average pooling" in told
    assert "The order of the four means is the paper's, but no single step between them can be told from 0." in told
    assert components_steps.seen(value).holds == "partly"


def test_steps_beyond_their_interval_are_named_and_all_of_them_keep_the_promise() -> None:
    value = component_runs(20.0, 21.0, 21.5, 24.0)
    told = components.told(value)
    assert "By pairs of runs, each alone and both together are ahead of average pooling" in told
    assert "told from 0 are the steps neither to GSP, neither to ZSR, GSP to both, ZSR to both." in told
    assert components_steps.seen(value).holds == "yes"


def test_components_that_lose_or_cannot_be_told_do_not_keep_the_promise() -> None:
    worse = component_runs(20.0, 19.0, 20.1, 20.1)
    assert "behind average pooling: GSP alone; ahead of it: none." in components.told(worse)
    assert "is not the paper's" in components.told(worse)
    assert components_steps.seen(component_runs(20.0, 19.0, 19.0, 18.0)).holds == "no"
    assert components_steps.seen(component_runs(20.0, 20.1, 20.1, 20.1)).holds == "cannot tell"
    single = component_runs(20.0, 21.0, 21.5, 24.0, repeats=1)
    assert components.told(single) == ""
    assert components_steps.seen(single).holds == "cannot tell"


def test_the_paper_s_gains_are_looked_for_in_the_intervals() -> None:
    # The paper gains 0.27, 0.50 and 0.94 on CUB.
    near = components.told(component_runs(20.0, 20.27, 20.5, 20.94))
    assert "The paper gains GSP +0.27, ZSR +0.50, both +0.94; of these our intervals leave out none." in near
    far = components.told(component_runs(20.0, 20.27, 20.5, 25.94))
    assert "of these our intervals leave out both, by means of folds both." in far


def test_what_means_of_folds_do_not_tell_is_not_said_without_that() -> None:
    value = component_runs(20.0, 20.2, 20.25, 20.6)
    only = "**By pairs of runs, only both together can be told from average pooling"
    # Runs swing with the fold here, so that four folds leave open what twelve pairs tell.
    assert f"{only}; means of folds do not tell it.**" in components.told(value)
    assert ", which means of 4 folds do not tell: " in components_steps.seen(value).because
    for run in value["runs"]:
        if run["asked"]["arm"] == "c2 gsp":
            run["found"]["metrics"]["map@r"] = 0.206 + (-0.003, 0.0, 0.003)[run["asked"]["seed"]]
    assert f"{only}.**" in components.told(value)
    assert "means of folds do not" not in components.told(value)
    assert "means of 4 folds" not in components.told(value)
    # All three are ahead, and of two of them folds do not tell it.
    more = component_runs(20.0, 20.6, 20.5, 20.6)
    for run in more["runs"]:
        if run["asked"]["arm"] == "c2 gsp":
            run["found"]["metrics"]["map@r"] = 0.206 + (-0.003, 0.0, 0.003)[run["asked"]["seed"]]
    assert "ahead of average pooling; means of folds do not tell it of GSP alone.**" in components.told(more)


def test_what_selecting_brings_is_left_open_where_neither_part_alone_is_told() -> None:
    value = component_runs(20.0, 20.2, 20.25, 20.6)
    told = components.told(value)
    assert "entropy of the weights of GSP is 0.99 on cub" in told
    assert "gains +0.20; ZSR alone, with equal weights (mu = 1), +0.25; ZSR less GSP is +0.05 (95 % interval" in told
    assert "Neither can be told from 0: how much of the gain of both comes from selecting cannot be told." in told
    assert "nearly equal" not in told
    assert "Little of the gain" not in told
    strong = components.told(component_runs(20.0, 21.0, 20.1, 21.5))
    assert "Told from 0: GSP alone." in strong
    assert "cannot be told." not in strong


def test_layers_would_draw_another_embedding_than_gsp_and_are_given_its_own() -> None:
    drawn = []
    for arm in components.ARMS:
        settings = made_tiny(settings_of(arm, "cub", "fair", "keras/resnet50", None, 0, "32-true"))
        drawn.append(build_model(settings).head.embed.weight)
    gap, *others = drawn
    assert all(torch.equal(others[0], other) for other in others)
    assert not torch.equal(gap, others[0])
    assert [draws_apart(arm) for arm in components.ARMS] == [True, False, False, False]
    assert all(draws_apart(Arm(loss, "gap")) for loss in LOSSES)


def test_what_a_draw_of_the_embedding_does_is_told() -> None:
    def runs(arm: str, values: Sequence[float]) -> list[Run]:
        asked = {"arm": arm, "loss": arm.split()[0]}
        places = itertools.product(range(2), range(2))
        return [
            Run(
                {**asked, "fold": fold, "seed": seed},
                {
                    "metrics": {"map@r": value / 100},
                    "validation": value / 100,
                    "origin": {"commit": "dc6d9e8" if fold and "apart" in arm else "99ef4d7"},
                },
            )
            for (fold, seed), value in zip(places, values, strict=True)
        ]

    both = runs("c2 gap", (20.0, 20.2, 20.4, 20.6)) + runs("c2 gap drawn apart", (20.0, 20.0, 20.0, 20.0))
    told = draws_told([*both, *runs("ms gap", (1.0, 1.0, 1.0, 1.0))])
    assert "less GAP with its own: c2 +0.30 (95 % interval -0.11 to +0.71), a single pair deviates by 0.26." in told
    assert "Of these 4 pairs 2 have one run from before and one from after" in told
    assert "one run from before" not in components.told(component_runs(20.0, 20.2, 20.25, 20.6))
    assert draws_told(runs("c2 gap", (20.0, 20.2, 20.4, 20.6))) == ""
    gsp = runs("c2 gsp", (20.0, 20.2, 20.4, 20.6))
    assert earlier_steps_told(gsp) == ""
    told = earlier_steps_told([*gsp, *runs("c2 gsp earlier step", (20.0, 20.0, 20.0, 20.0)), *both])
    assert "earlier one: c2 +0.30 (95 % interval -0.11 to +0.71), a single pair deviates by 0.26." in told
    assert "The same on validation classes: c2 +0.30 (95 % interval -0.11 to +0.71)" in told
    assert "GSP by the earlier step less GAP: c2 -0.30 (95 % interval -0.71 to +0.11)" in told
    alone = earlier_steps_told(runs("c2 gsp epsilon 20, earlier step", (20.0, 20.0, 20.0, 20.0)))
    assert alone.startswith("Rows that end in *earlier step* have")
    assert alone.endswith("its rounding alone.")


def test_mu_is_measured_on_validation_classes_and_drawn(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mu, "MUS", (0.2, 0.9))
    monkeypatch.setattr(mu, "ARMS", (mu.ARMS[0], mu.ARMS[2], mu.ARMS[6]))
    mu.run(replace(options, seeds=(0, 1)))
    value = read_result(options.results / "mu.json")["value"]
    assert value["protocol"] == "tuning"
    for arm in value["arms"]:
        watched = [run["found"]["validation"] for run in value["runs"] if run["asked"]["arm"] == arm["arm"]]
        assert arm["validation_map"] == pytest.approx(100 * np.mean(watched))
        assert arm["validation_std"] == pytest.approx(100 * np.std(watched, ddof=1))
    assert (options.images / "mu.png").stat().st_size > 5_000
    assert "mu 0.9" in mu.EXPERIMENT.render(options.results)
    assert [each.what.rpartition(", ")[2] for each in mu.headlines(value)] == ["mu 0.2", "mu 0.9"]
    assert mu.EXPERIMENT.unfinished(options.results) == "3 of 9 trainings"
    reached = mu_trend.by_seed(value)
    falls = [reached[seed]["c2 gsp mu 0.2"] - reached[seed]["c2 gsp mu 0.9"] for seed in (0, 1)]
    assert mu_trend.trend(value, mu.MUS).cuts[0.2]["mean"] == pytest.approx(np.mean(falls))
    assert f"in pairs by seed (2 seeds): up to 0.2 {np.mean(falls):+.2f}" in mu.EXPERIMENT.render(options.results)
    assert mu_trend.told({**value, "arms": value["arms"][:-1]}, mu.MUS) == ""


def mu_runs(small: list[float], large: list[float], gap: list[float]) -> dict:
    """Runs of mu 0.1 and 0.2 (half a point more), of mu 0.9, and of average pooling, a seed an entry, in percent."""
    by_arm = {"c2 gap": gap, "c2 gsp mu 0.1": small, "c2 gsp mu 0.2": [each + 0.5 for each in small]}
    by_arm["c2 gsp mu 0.9"] = large
    runs = [
        {"asked": {"arm": arm, "seed": seed}, "found": {"validation": value / 100}}
        for arm, values in by_arm.items()
        for seed, value in enumerate(values)
    ]
    arms = [
        {"arm": arm, "runs": len(values), "validation_map": float(np.mean(values)), "validation_std": 0.1}
        for arm, values in by_arm.items()
    ]
    return {"arms": arms, "runs": runs}


@pytest.mark.parametrize(
    ("small", "large", "holds"),
    [
        ([50.0, 50.1, 50.2], [48.0, 48.1, 48.3], "yes"),
        # A fall, but of less than what lies between small values of mu.
        ([50.0, 50.1, 50.2], [50.0, 50.1, 50.2], "partly"),
        ([50.0, 50.1, 50.2], [52.0, 52.1, 52.3], "no"),
        ([50.0, 51.0, 49.0], [50.0, 49.0, 51.5], "cannot tell"),
        ([50.0], [40.0], "cannot tell"),
        # The third seed lacks a mu, and two that differ leave everything open.
        ([50.0, 53.0, 50.0], [49.0, 49.0], "cannot tell"),
    ],
)
def test_a_fall_with_mu_is_judged_by_seeds(small: list[float], large: list[float], holds: str) -> None:
    value = mu_runs(small, large, [50.0] * len(small))
    assert mu_trend.seen(value, (0.1, 0.2, 0.9)).holds == holds


def mu_curve(means: dict[float, float], off: dict[float, list[float]]) -> dict:
    """Three seeds with these means; a mu swings by ``off`` from seed to seed, else by next to nothing."""
    by_arm = {
        mu_trend.arm_of(each): [mean + swing for swing in off.get(each, [-0.01, 0.0, 0.01])]
        for each, mean in means.items()
    }
    runs = [
        {"asked": {"arm": arm, "seed": seed}, "found": {"validation": value / 100}}
        for arm, values in by_arm.items()
        for seed, value in enumerate(values)
    ]
    return {
        "arms": [{"arm": arm, "validation_map": float(np.mean(each))} for arm, each in by_arm.items()],
        "runs": runs,
    }


MUS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)


@pytest.mark.parametrize(
    ("means", "off", "holds", "counted"),
    [
        (
            (50, 50, 50, 49, 48, 47, 46),
            {},
            "yes",
            "by 4 of 4 cuts between neighbouring mu from 0.3 on, and by the slope over all",
        ),
        # The last mu swings: only where it stands among enough others is a fall told.
        ((50, 50, 50, 49, 49, 49, 49), {1.0: [-9, 0, 9]}, "cannot tell", "by 0 of 4 cuts"),
        (
            (50, 50, 50, 49, 49, 49, 49),
            {1.0: [-1, 0, 1]},
            "partly",
            "by 1 of 4 cuts between neighbouring mu from 0.3 on, not by",
        ),
        # Lowest in the middle: the first cut tells a fall, the last a rise.
        (
            (50, 50, 50, 48, 48, 48, 50),
            {},
            "partly",
            "by 3 of 4 cuts between neighbouring mu from 0.3 on, and by the slope",
        ),
        (
            (48, 48, 48, 49, 49, 49, 49),
            {},
            "no",
            "by 0 of 4 cuts between neighbouring mu from 0.3 on, not by the slope",
        ),
    ],
)
def test_a_fall_counts_only_if_it_does_not_hang_on_the_cut(
    means: tuple[float, ...], off: dict[float, list[float]], holds: str, counted: str
) -> None:
    value = mu_curve(dict(zip(MUS, map(float, means), strict=True)), off)
    found = mu_trend.seen(value, MUS)
    assert (found.holds, counted in found.because) == (holds, True)
    told = mu_trend.told(value, MUS)
    assert ("**Quality falls as mu grows, wherever small mu end.**" in told) == (holds == "yes")
    assert (f"depends on where small mu end: a fall is told {counted}" in told) == (holds == "partly")
    assert "Where small mu end is our choice" in told


def test_the_cuts_and_the_slope_are_those_of_the_single_runs() -> None:
    figures = np.random.default_rng(0).normal(50, 1, (3, 7))
    means = dict(zip(MUS, figures.mean(0), strict=True))
    value = mu_curve(means, {each: list(figures[:, k] - figures[:, k].mean()) for k, each in enumerate(MUS)})
    found = mu_trend.trend(value, MUS)
    assert found is not None
    assert list(found.cuts) == [0.3, 0.5, 0.7, 0.9]
    for count, each in zip((3, 4, 5, 6), found.cuts.values(), strict=True):
        expected = figures[:, :count].mean(1) - figures[:, count:].mean(1)
        assert (each["mean"], each["error"]) == pytest.approx((expected.mean(), stats.sem(expected)))
    slopes = -np.polyfit(MUS, figures.T, 1)[0]
    assert (found.slope["mean"], found.slope["error"]) == pytest.approx((slopes.mean(), stats.sem(slopes)))
    lowest = min(means, key=means.__getitem__)
    assert f"the lowest mean is that of mu {lowest:g};" in mu_trend.seen(value, MUS).because
    assert f"from {means[lowest]:.2f} (mu {lowest:g}) to" in mu_trend.told(value, MUS)
    assert ("the largest mu, 1, is not the lowest: " in mu_trend.told(value, MUS)) == (lowest != 1.0)


def test_no_seed_with_every_mu_tells_nothing() -> None:
    value = mu_runs([50.0], [49.0], [50.0])
    assert mu_trend.seen(value, (0.1, 0.2, 0.9, 1.0)).holds == "cannot tell"
    assert mu_trend.told(value, (0.1, 0.2, 0.9, 1.0)) == ""


def test_the_mu_that_differ_from_average_pooling_are_named() -> None:
    value = mu_runs([50.0, 50.1, 50.2], [48.0, 48.1, 48.3], [50.0, 50.1, 50.2])
    assert "Average pooling reaches 50.10 ± 0.10: only mu 0.2, 0.9 can be told from it." in mu_trend.told(
        value, (0.1, 0.2, 0.9)
    )


def test_one_seed_has_no_bar_and_several_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(study_pictures, "save", lambda figure, path: drawn.append(figure))
    names = {0.1: "c2 gsp mu 0.1", 0.9: "c2 gsp mu 0.9"}
    for seeds in (1, 3):
        value = {"data": "cub", **mu_runs([50.0] * seeds, [49.0] * seeds, [50.0] * seeds)}
        study_pictures.draw_mu(value, names, tmp_path / "mu.png")
    one, several = (figure.axes[0] for figure in drawn)
    assert (len(one.containers), one.get_title()) == (0, "cub, C2, one seed")
    assert (len(several.containers), several.get_title()) == (1, "cub, C2, 3 seeds")
    study_pictures.pyplot.close("all")


def test_the_factorial_is_balanced_and_its_main_effects_are_not_mixed() -> None:
    signs = np.array(
        [
            [1 if getattr(c, factor) == high else -1 for factor, (_, high) in screening_design.FACTORS.items()]
            for c in screening_design.CORNERS
        ]
    )
    assert np.array_equal(signs.T @ signs, 8 * np.eye(4))
    assert set(signs.prod(1)) == {1}


def corner_value(figures: np.ndarray, losses: tuple[str, ...] = screening_design.LOSSES) -> dict:
    """A value of the screening with these figures in percent, [seeds, corners], the same with each loss."""
    named = [(arm.name, each) for loss in losses for arm, each in zip(corner_arms(loss), figures.T, strict=True)]
    runs = [
        {"asked": {"arm": arm, "seed": seed}, "found": {"validation": float(figure) / 100, "entropy": 1.0}}
        for arm, each in named
        for seed, figure in enumerate(each)
    ]
    arms = [
        {"arm": arm, "pooling": "gsp", "validation_map": float(each.mean()), "runs": len(each), "entropy": 1.0}
        for arm, each in named
    ]
    return {"data": "cub", "arms": arms, "runs": runs}


def test_main_effects_are_those_of_least_squares_seed_by_seed() -> None:
    found = np.random.default_rng(0).normal(40, 1, (3, 8))
    value = corner_value(found, ("c2",))
    design = np.array(
        [
            [1.0, *(float(getattr(c, factor) == high) for factor, (_, high) in screening_design.FACTORS.items())]
            for c in screening_design.CORNERS
        ]
    )
    by_seed = screening_effects.effects_of(value, "c2")
    assert by_seed is not None
    expected = np.linalg.lstsq(design, found.T, rcond=None)[0][1:]
    assert list(by_seed.whole.values()) == [pytest.approx(each.tolist()) for each in expected]
    kept = found.mean(0) != found.mean(0).min()
    others = np.linalg.lstsq(design[kept], found[:, kept].T, rcond=None)[0][1:]
    assert list(by_seed.without.values()) == [pytest.approx(each.tolist()) for each in others]
    assert by_seed.below == pytest.approx(found[:, kept].mean() - found[:, ~kept].mean())
    low, high = stats.ttest_1samp(expected[2], 0).confidence_interval()
    assert by_seed.told("epsilon") == f"{expected[2].mean():+.2f} (95 % interval {low:+.2f} to {high:+.2f})"


def test_only_seeds_that_every_corner_has_count() -> None:
    value = corner_value(np.random.default_rng(0).normal(40, 1, (3, 8)))
    without = {**value, "runs": [run for run in value["runs"] if run is not value["runs"][2]]}
    assert [screening_effects.effects_of(without, loss).seeds for loss in ("c2", "pnca")] == [2, 3]
    # Every corner has a seed, but none of them all corners.
    apart = {**value, "runs": [run for k, run in enumerate(value["runs"]) if k % 3 == k // 3 % 2]}
    assert len({run["asked"]["arm"] for run in apart["runs"]}) == 16
    assert screening_effects.effects_of(apart, "c2") is None
    assert screening_promise.seen(apart).holds == "cannot tell"


def test_screening_trains_a_corner_of_the_grid_once(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening_design, "LOSSES", ("c2",))
    monkeypatch.setattr(screening_design, "GRID_PROTOTYPES", (16,))
    monkeypatch.setattr(screening_design, "GRID_EPSILONS", (0.5, 5.0))
    screening.run(replace(options, seeds=()))
    value = read_result(options.results / "screening.json")["value"]
    assert len(value["arms"]) == 10
    effects = {each.what.split(", ")[0]: each.paper for each in screening.headlines(value)}
    # By hand from the paper's table: the four corners with the high level less the four with the low, over four.
    by_hand = (36.11 + 39.11 + 39.61 + 35.36 - 40.63 - 40.41 - 40.22 - 40.07) / 4
    assert float(effects["effect of epsilon"]) == pytest.approx(by_hand, abs=0.006)
    assert value["arms"][0]["seeds"] == [0]
    assert (options.images / "screening.png").stat().st_size > 5_000
    assert screening.EXPERIMENT.unfinished(options.results) == ""
    shown = screening.EXPERIMENT.render(options.results)
    assert "40.63" in shown
    assert "from the low level to the high" in shown
    corners = {arm["arm"]: arm["validation_map"] for arm in value["arms"] if "gsp" in arm["arm"]}
    names = [arm.name for arm in screening.factorial_arms() if arm.pooling == "gsp"]
    ranked = sorted(corners[name] for name in names)
    assert f"lies {np.mean(ranked[1:]) - ranked[0]:.2f} below the mean of the others" in shown
    assert "| epsilon 5 |" in shown
    assert "One seed with every corner (c2): no error of these effects is known" in shown
    assert screening.EXPERIMENT.verdict(read_result(options.results / "screening.json")).holds == "cannot tell"
    assert "images/screening.png" in shown


def factorial(points: dict[str, float], lowest: float = 0.0, seeds: int = 3, swing: float = 0.1) -> dict:
    """Corners of both losses with these main effects; ``lowest`` is taken off the last of them.

    Effects swing by that much from seed to seed, each in other turns: three seeds leave 2.48 times as much unsure.
    """
    figures = np.full((seeds, 8), 50.0)
    for turn, (name, (_, level)) in enumerate(screening_design.FACTORS.items()):
        high = np.array([getattr(corner, name) == level for corner in screening_design.CORNERS])
        swings = [swing * (-1, 0, 1)[(seed + turn) % 3] if seeds > 1 else 0.0 for seed in range(seeds)]
        figures += (points[name] + np.array(swings))[:, None] * high
    figures[:, -1] -= lowest
    return corner_value(figures)


PROMISED = {"prototypes": -0.1, "mu": -1.0, "epsilon": -3.0, "zsr": -1.0}


@pytest.mark.parametrize(
    ("points", "lowest", "seeds", "holds"),
    [
        (PROMISED, 0.0, 3, "yes"),
        (PROMISED, 0.0, 1, "cannot tell"),
        ({**PROMISED, "mu": 1.0}, 0.0, 3, "partly"),
        ({**PROMISED, "prototypes": -6.0}, 0.0, 3, "partly"),
        # Prototypes that count nearly as much as epsilon do not hardly count.
        ({**PROMISED, "prototypes": -2.0}, 0.0, 3, "partly"),
        ({"prototypes": -2.9, "mu": -0.01, "epsilon": -3.0, "zsr": -0.01}, 0.0, 3, "no"),
        # What one corner makes leaves the promise open.
        (dict.fromkeys(PROMISED, -0.1), 20.0, 3, "cannot tell"),
        (dict.fromkeys(PROMISED, 1.0), 0.0, 3, "no"),
    ],
)
def test_effects_count_only_if_they_stand_without_the_lowest_corner(
    points: dict[str, float], lowest: float, seeds: int, holds: str
) -> None:
    assert screening_promise.seen(factorial(points, lowest, seeds)).holds == holds


@pytest.mark.parametrize(
    ("points", "swing", "part", "state"),
    [
        (PROMISED, 0.1, "epsilon matters most", "seen"),
        (PROMISED, 0.5, "epsilon matters most", "cannot tell"),
        ({**PROMISED, "zsr": 5.0}, 0.1, "epsilon matters most", "not seen"),
        (PROMISED, 0.3, "lower mu is better", "seen"),
        (PROMISED, 0.5, "lower mu is better", "cannot tell"),
        ({**PROMISED, "mu": 1.0}, 0.3, "lower mu is better", "not seen"),
        (PROMISED, 0.1, "prototypes hardly count", "seen"),
        (PROMISED, 0.2, "prototypes hardly count", "cannot tell"),
        ({**PROMISED, "prototypes": 0.4}, 0.1, "prototypes hardly count", "cannot tell"),
        ({**PROMISED, "prototypes": 0.8}, 0.1, "prototypes hardly count", "not seen"),
        ({**PROMISED, "prototypes": -0.8}, 0.1, "prototypes hardly count", "not seen"),
    ],
)
def test_every_part_of_the_promise_is_judged_by_its_interval(
    points: dict[str, float], swing: float, part: str, state: str
) -> None:
    value = factorial(points, swing=swing)
    found = screening_effects.effects_of(value, "c2")
    assert found is not None
    assert screening_promise.parts_of(found)[part] == state
    assert f"{part} (c2)" in screening_promise.seen(value).because.partition(f"{state}: ")[2].partition(";")[0]
    told = screening_section.told(value)
    assert f", 3 seeds: prototypes {points['prototypes']:+.2f} (95 % interval" in told
    assert part in told.partition(f"{state}: ")[2].partition(";")[0]


@pytest.mark.parametrize(("lowest", "state"), [(20.0, "made by one corner"), (0.0, "seen")])
def test_an_effect_of_one_corner_is_named_so_and_not_called_seen(lowest: float, state: str) -> None:
    points = {**PROMISED, "mu": -0.3}
    found = screening_effects.effects_of(factorial(points, lowest), "c2")
    assert found is not None
    assert screening_promise.parts_of(found)["lower mu is better"] == state
    # A corner that is higher than the rest makes an effect on the other side.
    higher = screening_effects.Effects({"mu": [1.0, 1.1, 1.2]}, {"mu": [0.1, 0.1, 0.1]}, found.lowest, 1.0)
    assert screening_promise.lower_is_better(higher, "mu") == "cannot tell"
    assert screening_promise.lower_is_better(higher._replace(without=higher.whole), "mu") == "not seen"


def test_the_paper_s_own_effects_stand_beside_ours() -> None:
    told = screening_section.told(factorial(PROMISED))
    # By hand from the paper's table: the mean of four corners less that of the other four.
    high, low = (40.22 + 40.41 + 36.11 + 35.36) / 4, (40.63 + 40.07 + 39.11 + 39.61) / 4
    assert f"c2 prototypes -0.25, mu -0.41, epsilon -2.78, zsr {high - low:+.2f} (without its lowest corner," in told
    assert "There a higher mu and zsr with pnca is better, whatever the text says." in told
    lowest = screening_section.told(factorial(PROMISED, 20.0))
    assert "m 128, mu 0.7, epsilon 20, zsr 0.5, which is that of the paper's table, lies" in lowest


def test_effects_that_swing_with_the_seed_cannot_be_told() -> None:
    assert screening_promise.seen(factorial(PROMISED, swing=3.0)).holds == "cannot tell"


def test_a_count_of_runs_makes_no_interval_where_one_seed_was_run() -> None:
    value = factorial(PROMISED, seeds=1)
    for arm in value["arms"]:
        arm["runs"] = 2
    found = screening_promise.seen(value)
    assert found.holds == "cannot tell"
    assert found.because.startswith("one seed with every corner (c2 and pnca), so that no effect has an interval; ")
    assert "pnca prototypes -0.10, mu -1.00, epsilon -3.00" in found.because


def test_one_loss_with_one_seed_leaves_the_promise_open() -> None:
    value = factorial(PROMISED)
    runs = [run for run in value["runs"] if run["asked"]["seed"] == 0 or run["asked"]["arm"].startswith("c2")]
    found = screening_promise.seen({**value, "runs": runs})
    assert (found.holds, found.because[:34]) == ("cannot tell", "one seed with every corner (pnca),")
    assert "One seed with every corner (pnca): no error" in screening_section.told({**value, "runs": runs})


def test_an_effect_of_one_corner_is_said_not_to_stand() -> None:
    told = screening_section.told(factorial(dict.fromkeys(PROMISED, -0.1), 20.0))
    assert told.count("**No effect stands.**") == 2
    assert "One seed" not in told
    half = factorial(PROMISED)
    half["runs"] = [run for run in half["runs"] if run["asked"]["arm"] != half["arms"][0]["arm"]]
    assert screening_promise.seen(half).holds == "cannot tell"
    assert screening_effects.effects_of(half, "c2") is None


def test_corners_are_compared_over_the_seeds_that_all_of_them_have() -> None:
    one, several = factorial(PROMISED, seeds=1), factorial(PROMISED, swing=9.0)
    last = corner_arms("c2")[-1].name
    # What other seeds reach counts nowhere while a corner lacks them.
    several["runs"] = one["runs"] + [
        run
        for run in several["runs"]
        if run["asked"]["seed"] and run["asked"]["arm"] != last and "c2" in run["asked"]["arm"]
    ]
    for value in (one, several):
        figures = {headline.what: headline.ours for headline in screening.headlines(value)}
        assert figures["effect of epsilon, cub, c2, points of validation MAP@R"] == "-3.00 (one seed)"
        assert "epsilon -3.00, zsr -1.00" in screening_section.told(value)
    assert screening_section.factorial_table(several) == screening_section.factorial_table(one)


def test_with_one_seed_no_effect_is_said_to_stand() -> None:
    told = screening_section.told(factorial(PROMISED, seeds=1))
    kept = "With one seed, of prototypes, mu, epsilon, zsr the effect keeps sign and size without that corner."
    assert told.count(kept) == 2
    assert "**" not in told
    lowered = screening_section.told(factorial(dict.fromkeys(PROMISED, -0.1), 20.0, seeds=1))
    assert lowered.count("With one seed, no effect keeps sign and size without that corner.") == 2
    assert "**Of prototypes, mu, epsilon, zsr the effect stands.**" in screening_section.told(factorial(PROMISED))


def test_where_the_grid_is_best_is_told_beside_the_paper() -> None:
    figures = np.random.default_rng(0).normal(50, 1, (4, 5))
    counts, epsilons = screening_design.GRID_PROTOTYPES, screening_design.GRID_EPSILONS
    arms = [arm for arm in screening_design.grid_arms() if arm.loss == "c2"]
    rows = [
        {"arm": arm.name, "pooling": "gsp", "runs": 1, "validation_map": float(figure), "entropy": 0.9}
        for arm, figure in zip(arms, figures.flat, strict=True)
    ]
    value = {"data": "cub", "protocol": "tuning", "arms": rows, "runs": []}
    told = screening_promise.grid_told(value)
    row, column = np.unravel_index(figures.argmax(), figures.shape)
    ranks = stats.rankdata(-figures, axis=0)[counts.index(64)]
    assert told.startswith("The paper's grid is best with c2 at m = 64 and epsilon 5. Ours is best with c2 at m = ")
    assert f"m = {counts[row]} and epsilon {epsilons[column]:g} ({figures.max():.2f}; the paper's cell " in told
    assert f"the paper's cell {figures[counts.index(64), epsilons.index(5.0)]:.2f})" in told
    assert f"m = 64 ranks {', '.join(f'{rank:g}' for rank in ranks)} of 4 from epsilon 0.5 to 20" in told
    assert "(one seed a cell) decide nothing, and the cells of an m share" in told
    assert told in screening_section.written(value)
    # A grid that is not whole may be best where nobody has looked.
    assert screening_promise.grid_told({**value, "arms": rows[1:]}) == ""


@pytest.mark.parametrize("module", [components, mu, screening, classification])
def test_what_the_supplement_shows_is_named_by_its_title(module) -> None:
    """Tables and figures of the supplement have no numbers that all readers share."""
    experiment = module.EXPERIMENT
    for text in (experiment.shows, experiment.not_attempted, module.__doc__):
        assert not re.search(r"Supp\.? (Tables?|Figures?)? ?\d", text)
    if "Supp" in experiment.shows:
        assert not re.search(r"(Tables?|Figures?) \d", experiment.shows)


def test_the_bound_of_hardly_is_told_beside_the_effects_of_the_paper() -> None:
    told = screening_section.told(factorial(PROMISED))
    assert "*hardly* count where their interval lies within 0.5 points to either side of 0" in told
    # By hand: the four corners of the paper with 128 prototypes less the four with 16, over four.
    by_hand = (40.35 + 40.85 + 39.12 + 39.92 - 40.59 - 40.34 - 40.51 - 39.88) / 4
    assert f"pnca prototypes {by_hand:+.2f}, mu" in told


def test_a_grid_of_which_less_than_half_is_there_is_left_out() -> None:
    arms = [arm for arm in screening_design.grid_arms() if arm.loss == "c2"]
    rows = [{"arm": arm.name, "pooling": "gsp", "runs": 1, "validation_map": 50.0, "entropy": 0.9} for arm in arms]
    value = {"data": "cub", "protocol": "tuning", "arms": rows[:9], "runs": []}
    assert screening_section.whole_grids(value) == ()
    assert "| epsilon 5 |" not in screening_section.written(value)
    assert "screening.png" not in screening_section.written(value)
    value["arms"] = rows[:10]
    assert screening_section.whole_grids(value) == ("c2",)
    assert "| epsilon 5 |" in screening_section.written(value)
    assert "screening.png" in screening_section.written(value)


def test_the_legend_of_the_grid_lies_outside_and_panels_say_their_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(study_pictures, "save", lambda figure, path: drawn.append(figure))
    rows = [{"arm": arm.name, "runs": 1, "validation_map": 50.0} for arm in screening_design.grid_arms()]
    rows.append({"arm": "c2 gap", "runs": 3, "validation_map": 49.0})
    value = {"data": "cub", "arms": [{**row, "pooling": "gsp"} for row in rows], "runs": []}
    screening.draw(value, tmp_path / "grid.png")
    (figure,) = drawn
    assert [axes.get_title() for axes in figure.axes] == ["cub, c2, one seed; GAP 3 seeds", "cub, pnca, one seed"]
    assert all(axes.get_legend() is None for axes in figure.axes)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["m = 16", "m = 32", "m = 64", "m = 128", "GAP"]
    study_pictures.pyplot.close("all")


def test_computation_measures_every_way_and_what_it_is_off_by(options: RunOptions) -> None:
    computation.run(options)
    rows = read_result(options.results / "computation.json")["value"]["rows"]
    assert [(row["way"], row["k"]) for row in rows] == [
        ("exact solver", None),
        ("closed form", 1),
        ("unrolled", 1),
        ("closed form", 5),
        ("unrolled", 5),
    ]
    assert rows[0]["relative_error"] < 1e-5 < rows[3]["relative_error"] < rows[1]["relative_error"]
    assert all(row["step_ms"] > 0 for row in rows)
    assert (options.images / "computation.png").stat().st_size > 5_000
    shown = computation.EXPERIMENT.render(options.results)
    assert "of 3 repeats, in the process's own CPU time" in shown
    assert "mu = 0.3, epsilon = 5" in shown


def test_a_whole_network_is_told_of_where_it_was_timed(tmp_path: Path) -> None:
    assert computation_section.on_gpu(tmp_path) == ""
    network = {"pixels": 224, "milliseconds": {"inference": {"gap": 2.0, "gsp": 2.03}}}
    birth = {"command": "count", "date": "2026-11-15", "device": "abacus", "versions": {}}
    (tmp_path / "gpu_resnet50.json").write_text(json.dumps({**birth, "network": network}))
    assert "takes 1.5 % longer at inference" in computation_section.on_gpu(tmp_path)
