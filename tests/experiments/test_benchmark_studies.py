"""Studies on a benchmark: components, mu, screening, computation; each in its tiny version, and its arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gspool.experiments import components, computation, mu, screening
from gspool.experiments.certificate import read_result
from gspool.experiments.experiment import NOT_RUN, RunOptions

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


def test_components_are_told_in_the_papers_order_only_where_it_shows() -> None:
    def ahead(*means: float, pairs: int = 12) -> dict:
        differences = [None, *({"mean": mean, "error": 0.1, "pairs": pairs} for mean in means)]
        named = zip(components.NAMES, differences, strict=True)
        return {"arms": [{"arm": name, "difference_from_gap": each} for name, each in named]}

    told = components.told(ahead(0.3, 0.4, 0.9))
    assert "GSP +0.30 (95 % interval +0.08 to +0.52), ZSR +0.40" in told
    assert told.endswith("In the mean, as in the paper, each alone is ahead, and both together furthest.")
    assert components.told(ahead(0.3, 1.0, 0.9)).endswith("The paper's order does not show.")
    assert components.told(ahead(-0.1, 0.4, 0.9)).endswith("The paper's order does not show.")
    assert components.told(ahead(0.3, 0.4, 0.9, pairs=1)) == ""


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
    by_arm = {arm["arm"]: arm["validation_map"] for arm in value["arms"]}
    small, large = by_arm["c2 gsp mu 0.2"], by_arm["c2 gsp mu 0.9"]
    assert mu.told(value).startswith(f"On average {small:.2f} with mu up to 0.3, from {small:.2f} to {small:.2f}, and")
    assert f"{large:.2f} with mu from 0.7 on" in mu.told(value)
    assert mu.told({"arms": value["arms"][:-1]}) == ""


def test_the_factorial_is_balanced_and_its_main_effects_are_not_mixed() -> None:
    signs = np.array(
        [
            [1 if getattr(c, factor) == high else -1 for factor, (_, high) in screening.FACTORS.items()]
            for c in screening.CORNERS
        ]
    )
    assert np.array_equal(signs.T @ signs, 8 * np.eye(4))
    assert set(signs.prod(1)) == {1}


def test_main_effects_are_those_of_least_squares() -> None:
    generator = np.random.default_rng(0)
    arms = [arm for arm in screening.factorial_arms() if arm.loss == "c2" and arm.pooling == "gsp"]
    found = generator.normal(40, 1, len(arms))
    value = {"arms": [{"arm": arm.name, "validation_map": float(each)} for arm, each in zip(arms, found, strict=True)]}
    design = np.array(
        [
            [1.0, *(float(getattr(c, factor) == high) for factor, (_, high) in screening.FACTORS.items())]
            for c in screening.CORNERS
        ]
    )
    expected = np.linalg.lstsq(design, found, rcond=None)[0][1:]
    effects = screening.effects(value, "c2")
    assert effects is not None
    assert list(effects) == ["prototypes", "mu", "epsilon", "zsr"]
    assert list(effects.values()) == pytest.approx(expected.tolist())
    assert screening.effects({"arms": value["arms"][1:]}, "c2") is None


def test_screening_trains_a_corner_of_the_grid_once(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "LOSSES", ("c2",))
    monkeypatch.setattr(screening, "GRID_PROTOTYPES", (16,))
    monkeypatch.setattr(screening, "GRID_EPSILONS", (0.5, 5.0))
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
    assert "exact solver" in computation.EXPERIMENT.render(options.results)
