"""Figures of finished trainings against a second computation, and the tables made from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from finished_trainings import finished, record_of
from gspool import data
from gspool.evaluation import RunResult, retrieval_metrics
from gspool.experiments import benchmark, benchmark_plots, components, cub_selection, mu, screening
from gspool.experiments.benchmark import search_variants
from gspool.experiments.cub_selection import EPSILONS, correlation, selection, selection_rows
from gspool.experiments.experiment import FromFile
from gspool.experiments.retrieval_figures import (
    joined_figures,
    joined_models,
    over_shared_seeds,
    paired_difference,
    separate_figures,
    single_models,
    variant_figures,
)
from gspool.experiments.retrieval_training import LOSSES, POOLINGS, Variant, layer_variants, paper_variants
from gspool.experiments.tables import read_table as cells
from gspool.search.explanation import shared_prototypes
from gspool.training.presets import changed

PLACES = [(fold, seed) for fold in range(4) for seed in range(3)]
GAP, GSP, XBM = Variant("c2", "gap"), Variant("c2", "gsp"), Variant("xbm+c1", "gap")


def drawn(seed: int, mean: float = 0.2, places=PLACES) -> dict[tuple[int, int], float]:
    values = np.random.default_rng(seed).normal(mean, 0.01, len(places))
    return dict(zip(places, values.tolist(), strict=True))


def test_paired_differences_against_scipy() -> None:
    gap, gsp = drawn(0), drawn(1, 0.21)
    # In another order: pairs are matched by fold and seed.
    found = paired_difference(finished(GSP, gsp), finished(GAP, dict(reversed(gap.items()))))
    differences = np.array([100 * (gsp[place] - gap[place]) for place in PLACES])
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    (shown,) = cells(benchmark.gains(record_of([*finished(GAP, gap), *finished(GSP, gsp)])))
    assert (found["mean"], found["std"]) == pytest.approx((differences.mean(), differences.std(ddof=1)))
    assert (found["pairs"], found["ahead"]) == (12, int((differences > 0).sum()))
    assert shown["GSP − GAP, MAP@R (95 %)"] == f"{differences.mean():+.2f} ({low:+.2f} to {high:+.2f})"
    folds = stats.ttest_1samp(differences.reshape(4, 3).mean(1), 0).confidence_interval(0.95)
    assert shown["over folds (95 %)"] == f"{differences.mean():+.2f} ({folds.low:+.2f} to {folds.high:+.2f})"


def test_figures_of_a_variant() -> None:
    gap = finished(GAP, {(0, 0): 0.2, (1, 0): 0.22})
    watched = {(0, 0): 0.3, (1, 0): 0.5, (2, 0): 0.46}
    gsp = finished(GSP, {(0, 0): 0.23, (1, 0): 0.23, (2, 0): 0.5}, watched)
    figures = variant_figures(gsp, gap)
    assert figures["map"]["mean"] == pytest.approx(32.0)
    # A run without a partner does not count.
    assert figures["difference_from_gap"]["mean"] == pytest.approx(2.0)
    assert figures["validation_map"] == pytest.approx(42.0)
    assert figures["mean_weights"] == [0.5, 1.5, 1.0, 1.0]
    assert (figures["folds"], figures["endings"]) == ([0, 1, 2], {"patience": 3, "max_steps": 0})
    assert variant_figures(gap, gap)["difference_from_gap"] is None
    assert paired_difference(gsp[2:], gap) is None
    # Folds count alike where runs are missing.
    runs = finished(GSP, {(0, 0): 0.1, (0, 1): 0.1, (1, 0): 0.4})
    assert variant_figures(runs, runs)["map"]["mean"] == pytest.approx(25.0)


def test_joined_models_are_all_combinations_of_one_repeat_a_fold() -> None:
    labels = torch.arange(12) % 4
    results = {}
    for fold in range(2):
        for seed in range(2):
            noise = torch.randn(12, 3, generator=torch.Generator().manual_seed(10 * fold + seed))
            results[fold, seed] = RunResult(noise, retrieval_metrics(noise, labels))
    expected = []
    for first in range(2):
        for second in range(2):
            parts = [results[0, first].embeddings, results[1, second].embeddings]
            joined = np.concatenate([part / part.norm(dim=1, keepdim=True) for part in parts], axis=1)
            expected.append(100 * retrieval_metrics(torch.tensor(joined), labels)["map@r"])
    found = joined_figures(results, 2, labels)
    assert (found["repeats"], found["combinations"]) == (2, 4)
    assert found["map_512D"]["mean"] == pytest.approx(np.mean(expected))
    assert found["map_512D"]["std"] == pytest.approx(np.std(expected))
    # A repeat that lacks a fold does not count, and the other one still does.
    part = joined_figures({place: each for place, each in results.items() if place != (1, 1)}, 2, labels)
    assert part["map_512D"]["mean"] == pytest.approx(expected[0])
    assert joined_figures(results, 3, labels) is None


def test_deviations_are_those_of_repeats() -> None:
    values = drawn(0)
    row = {**record_of(finished(GSP, values))["value"]["variants"][0]}
    row["separate"] = separate_figures(finished(GSP, values), 4)
    by_fold = np.array([[values[fold, seed] for seed in range(3)] for fold in range(4)])
    # Combinations of independent repeats: variances of folds add up.
    std = 100 * np.sqrt((by_fold.var(axis=1)).sum()) / 4
    assert single_models(row, "map") == f"{100 * by_fold.mean():.2f} ± {std:.2f}"
    assert single_models({**row, "runs": 11}, "map") == f"{100 * by_fold.mean():.2f}"
    few = {"repeats": 2, "combinations": 16, "map_512D": {"mean": 25.0, "std": 0.2}}
    assert joined_models({**row, "joined": few}) == "25.00 ± 0.20 (2 repeats)"
    assert joined_models({**row, "joined": {**few, "combinations": 1, "repeats": 1}}) == "25.00 (one repeat)"
    assert joined_models({**row, "joined": None}) == ""


def test_the_mean_over_losses_counts_once_a_fold() -> None:
    gains = {loss: drawn(number, 0.01 * number) for number, loss in enumerate(LOSSES[:3])}
    runs = []
    for loss, gain in gains.items():
        runs += finished(Variant(loss, "gap"), dict.fromkeys(PLACES, 0.2))
        runs += finished(Variant(loss, "gsp"), {place: 0.2 + each for place, each in gain.items()})
    *rows, mean = cells(benchmark.gains(record_of(runs)))
    assert [row["loss"] for row in rows] == [*gains]
    folds = [100 * np.mean([gain[fold, seed] for gain in gains.values() for seed in range(3)]) for fold in range(4)]
    low, high = stats.ttest_1samp(folds, 0).confidence_interval(0.95)
    assert mean["over folds (95 %)"] == f"{np.mean(folds):+.2f} ({low:+.2f} to {high:+.2f})"
    assert float(mean["paper"]) == pytest.approx(np.mean([float(row["paper"]) for row in rows]), abs=0.01)


def test_every_row_is_in_one_table_of_the_benchmark() -> None:
    variants = [*paper_variants(("c2",), POOLINGS), *layer_variants(("c2",))[13:], *search_variants(("c2",))]
    old = [Variant("c2", "gap", "drawn apart"), Variant("c2", "gsp", "earlier step")]
    runs = [run for number, each in enumerate([*variants, *old]) for run in finished(each, drawn(number))]
    record = record_of(runs)
    tables = {name: cells(benchmark.EXPERIMENT.tables[name](record)) for name in ("losses", "layers", "settings")}
    shown = [(row["pooling"], row.get("setting", "paper's")) for rows in tables.values() for row in rows]
    assert len(shown) == len(set(shown)) == len(variants) + len(old)
    assert [row["paper"] for row in tables["losses"]] == ["20.58 ± 0.13", "21.52 ± 0.16"]
    assert {row["paper"] for row in tables["layers"] if row["pooling"] == "otp"} == {"15.19", "20.88"}
    compared = cells(benchmark.EXPERIMENT.tables["earlier"](record))
    assert [row["comparison"] for row in compared] == [*dict.fromkeys(row["comparison"] for row in compared)]
    assert len(cells(benchmark.EXPERIMENT.tables["beside_layers"](record))) == 3
    # Models from before the memory starts are counted.
    early = [
        run for step, place in ((600, (0, 0)), (1700, (1, 0))) for run in finished(XBM, {place: 0.2}, best_step=step)
    ]
    assert benchmark.memory(record_of(early)) == "1 of 2 (gap)"


def test_the_chosen_setting_is_shown_apart_from_the_pairs_that_chose_it() -> None:
    sharp, learned = search_variants(("c2",))[:2]
    first = PLACES[::3]
    runs = finished(GAP, dict.fromkeys(PLACES, 0.2)) + finished(learned, dict.fromkeys(first, 0.2))
    runs += finished(sharp, {place: 0.25 if place in first else 0.21 for place in PLACES})
    rows = cells(benchmark.chosen_settings(record_of(runs)))
    assert [row["pairs"] for row in rows] == ["that chose (4)", "other (8)", "all (12)"]
    assert [row["less GAP, test (95 %)"].split()[0] for row in rows] == ["+5.00", "+1.00", "+2.33"]
    assert rows[0]["chosen setting"] == "epsilon 20 (of 2)"


def test_the_conventional_protocol_shows_its_best_run() -> None:
    values = {(0, 0): 0.30, (0, 1): 0.32, (0, 2): 0.31}
    runs = finished(Variant("xbm+c1", "gap+gmp"), values)
    runs += finished(Variant("xbm+c1", "gmp+gsp"), {place: value + 0.01 for place, value in values.items()})
    runs += finished(Variant("libc", "gap"), values) + finished(Variant("xbm+c1@100", "gap"), values)
    record = record_of(runs, "conventional")
    first, second, *others = cells(benchmark.conventional(record))
    assert (first["R@1"], first["mean R@1"], first["paper R@1"]) == ("64.00", "62.00 ± 2.00", "66.68")
    assert second["paper R@2, 4, 8"] == "77.43, 85.26, 91.02"
    assert [(row["loss"], row["paper R@1"]) for row in others] == [("libc", "70.30"), ("xbm+c1@100", "")]
    (gain,) = cells(benchmark.conventional_gain(record))
    assert gain["R@1 (95 %)"].startswith("+2.00")


def test_small_mu_are_compared_with_larger_ones_seed_by_seed() -> None:
    levels = np.random.default_rng(0).normal(0.5, 0.01, (3, len(mu.MUS)))
    runs = []
    for number, variant in enumerate(mu.VARIANTS[1:]):
        runs += finished(variant, {(0, seed): float(levels[seed, number]) for seed in range(3)})
    # A seed that lacks a mu does not count.
    runs += finished(mu.VARIANTS[1], {(0, 3): 0.9})
    found = mu.falls(record_of(runs, "tuning")["value"])
    expected = 100 * (levels[:, :4].mean(1) - levels[:, 4:].mean(1))
    assert found["mu ≤ 0.5 − larger"]["mean"] == pytest.approx(expected.mean())
    assert found["mu ≤ 0.5 − larger"]["error"] == pytest.approx(stats.sem(expected))
    slopes = [-100 * np.polyfit(mu.MUS, each, 1)[0] for each in levels]
    assert found["fall of the line, mu 0 to 1"]["mean"] == pytest.approx(np.mean(slopes))
    assert len(cells(mu.trend(record_of(runs, "tuning")))) == 5


def screened(figures: np.ndarray, loss: str = "c2") -> dict:
    """A record of the factorial with these figures in percent, [seeds, points]."""
    runs = []
    for number, variant in enumerate(screening.factorial_variants(loss)[1:]):
        runs += finished(variant, {(0, seed): float(each) / 100 for seed, each in enumerate(figures[:, number])})
    return record_of(runs, "tuning")


def design_matrix() -> np.ndarray:
    highs = {name: high for name, (_, high) in screening.FACTORS.items()}
    return np.array([[1.0, *(getattr(point, name) == highs[name] for name in highs)] for point in screening.DESIGN])


def test_main_effects_are_those_of_least_squares() -> None:
    signs = 2 * design_matrix()[:, 1:] - 1
    # The design is balanced, and main effects are not confounded with each other.
    assert np.array_equal(signs.T @ signs, 8 * np.eye(4))
    assert set(signs.prod(1)) == {1}
    figures = np.random.default_rng(0).normal(40, 1, (3, 8))
    found = screening.effects_of(screening.our_figures(screened(figures)["value"], "c2"))
    expected = np.linalg.lstsq(design_matrix(), figures.T, rcond=None)[0][1:]
    assert [*found.whole.values()] == [pytest.approx(each.tolist()) for each in expected]
    lowest = figures.mean(0).argmin()
    others = np.delete(figures, lowest, axis=1)
    assert found.below == pytest.approx(others.mean() - figures[:, lowest].mean())
    rows = cells(screening.effects(screened(figures)))
    low, high = stats.ttest_1samp(expected[2], 0).confidence_interval(0.95)
    assert rows[2]["effect, points (95 %)"] == f"{expected[2].mean():+.2f} ({low:+.2f} to {high:+.2f})"


def test_effects_without_the_lowest_point_are_those_of_the_others() -> None:
    truth = [1.0, -2.0, -3.0, 0.5]
    figures = np.tile(design_matrix() @ [40.0, *truth], (2, 1))
    figures[:, -1] -= 20.0
    found = screening.effects_of(figures)
    assert found.lowest == screening.DESIGN[-1]
    assert [each for each, _ in found.without.values()] == pytest.approx(truth)
    one = np.full((2, 8), 40.0)
    one[:, -1] = 30.0
    assert not any(screening.effects_of(one).robust(name) for name in screening.FACTORS)
    additive = np.tile(design_matrix() @ [40.0, 0.0, 0.0, -3.0, 0.0], (2, 1))
    assert screening.effects_of(additive).robust("epsilon")


def test_seeds_count_that_all_variants_have() -> None:
    first, second = screening.factorial_variants("c2")[1:3]
    runs = finished(first, {(0, 0): 0.4, (0, 1): 0.5}) + finished(second, {(0, 0): 0.41})
    value = record_of(runs, "tuning")["value"]
    found = over_shared_seeds(value, [first.name, second.name, "c2 gap"])
    assert [(round(each["validation_map"], 6), each["runs"]) for each in found.values()] == [(40.0, 1), (41.0, 1)]
    assert len(screening.our_figures(value, "c2")) == 0
    runs = finished(screening.grid_variant("c2", 64, 5.0), {(0, 0): 0.5}, entropy=0.875)
    (row,) = cells(screening.grid(record_of(runs, "tuning")))
    assert (row["m"], row["ε = 5"], row["ε = 0.5"]) == ("64", "50.00 (0.875)", "")


def test_tables_of_nothing_say_so() -> None:
    empty = {"value": {"data": "cub", "protocol": "fair", "backbone": "keras/resnet50", "variants": [], "runs": []}}
    for module in (benchmark, components, mu):
        for part in module.EXPERIMENT.tables.values():
            if not isinstance(part, FromFile):
                assert part(empty) in ("*No runs yet.*", "")


def test_rows_with_fewer_runs_are_drawn_at_their_paired_distance_from_gap() -> None:
    runs = finished(GAP, drawn(0)) + finished(Variant("c2", "delf"), {(0, 0): 0.9})
    rows = {row["pooling"]: row for row in benchmark_plots.rows_of(record_of(runs))}
    point = benchmark_plots.summary_point(rows["delf"], rows["gap"])
    expected = 100 * np.mean([*drawn(0).values()]) + 100 * (0.9 - drawn(0)[0, 0])
    assert point.mean == pytest.approx(expected)
    assert not point.whole


def test_correlation_is_that_of_every_image_averaged() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(5, 9), torch.randn(5, 9)
    expected = sum(float(torch.corrcoef(torch.stack([a, b]))[0, 1]) for a, b in zip(first, second, strict=True)) / 5
    assert correlation(first, second) == pytest.approx(expected, abs=1e-5)


def test_weights_become_sharper_with_epsilon() -> None:
    torch.manual_seed(0)
    # Half of an image is one long feature of its own direction, the other half short noise.
    foreground = torch.nn.functional.normalize(torch.randn(12, 1, 16), dim=-1)
    tokens = torch.cat([20 * foreground.expand(12, 8, 16), torch.randn(12, 8, 16)], dim=1)
    rows = selection_rows(tokens.transpose(1, 2).unflatten(2, (4, 4)), tokens, prototypes=4)
    entropies = [row["entropy"] for row in rows[: len(EPSILONS)]]
    assert entropies == sorted(entropies, reverse=True)
    assert all(np.mean(row["mean_weights"]) == pytest.approx(1.0, abs=1e-3) for row in rows)
    assert len(cells(selection({"value": {"rows": rows}}))) == 2 * len(EPSILONS)


def test_maps_of_prototypes_are_drawn_from_the_result_alone(tmp_path: Path) -> None:
    config = changed(
        cub_selection.head_config(tmp_path, None),
        model__backbone="small_cnn",
        model__backbone_options={"width": 2},
        data__classes_per_batch=4,
        features__folder=str(tmp_path / "tokens"),
        trainer__max_steps=2,
        trainer__evaluate_every=2,
        trainer__progress=False,
    )
    sets = {split: data.create("glyphs", split, images_per_class=4) for split in ("train", "test")}
    sets = {split: cub_selection.first_of(each, range(0, 12, 2), 2) for split, each in sets.items()}
    assert sets["test"].labels.tolist() == [label for label in range(6) for _ in range(2)]
    found = cub_selection.explained(config, sets, tmp_path / "run")
    value = cub_selection.prototype_value(found, sets["test"])
    pairs = [shared_prototypes(found[place], found[place + 1]).overlap for place in range(0, 12, 2)]
    assert value["overlap_same_class"] == pytest.approx(np.mean(pairs))
    for row, each in zip(value["images"], found, strict=True):
        shown = cub_selection.without_photograph(row, value["prototypes"])
        assert torch.equal(shown.owners, each.owners)
        torch.testing.assert_close(shown.weights, each.weights, atol=1e-3, rtol=0.02)
        assert (shown.image == 255).all()
    cub_selection.draw_prototypes({"value": value}, tmp_path / "maps.png")
    assert (tmp_path / "maps.png").is_file()
