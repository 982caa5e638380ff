"""The verdict on GSP follows from the pairs, and the setting beside the paper's from validation classes alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from finished_runs import Values, finished
from gspool.experiments.benchmark.arms import Arm
from gspool.experiments.benchmark.choice import best_arms
from gspool.experiments.benchmark.figures import arm_figures, arms_of, separate_figures
from gspool.experiments.benchmark.search import search_arms
from gspool.experiments.benchmark.section import render_study
from gspool.experiments.benchmark.store import Run
from gspool.experiments.benchmark.tables import concatenated, fair_rows, separate
from gspool.experiments.benchmark.verdict import seen, verdicts, verdicts_of_search
from gspool.experiments.paired import STUDENT, by_folds, difference_of, interval, verdict


def over_folds(*values: float) -> Values:
    return {(fold, 0): value for fold, value in enumerate(values)}


GAP, PAPER = Arm("c2", "gap"), Arm("c2", "gsp")
SHARP, LEARNED = search_arms(("c2",))[:2]


def test_the_interval_is_that_of_student() -> None:
    assert [round(float(stats.t.ppf(0.975, freedom)), 3) for freedom in range(1, 12)] == list(STUDENT)
    differences = np.random.default_rng(0).normal(0.5, 1.0, 12)
    error = differences.std(ddof=1) / np.sqrt(12)
    expected = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert interval({"mean": differences.mean(), "error": error, "pairs": 12}) == pytest.approx(expected, abs=1e-3)
    # Beyond twelve pairs it is never too narrow.
    wide = interval({"mean": 0.0, "error": 1.0, "pairs": 30})[1]
    assert wide > stats.t.ppf(0.975, 29)


@pytest.mark.parametrize(
    ("mean", "error", "pairs", "word"),
    [(1.0, 0.3, 12, "ahead"), (-1.0, 0.3, 12, "behind"), (0.5, 0.3, 12, "cannot tell"), (5.0, 0.0, 1, "cannot tell")],
)
def test_a_difference_is_told_only_where_the_interval_leaves_zero_out(mean, error, pairs, word) -> None:
    assert verdict({"mean": mean, "error": error, "pairs": pairs}) == word


def test_the_words_hold_the_pairs_the_interval_and_the_entropy() -> None:
    gap = finished(GAP, over_folds(0.2, 0.2, 0.2, 0.2))
    paper = finished(PAPER, over_folds(0.19, 0.2, 0.21, 0.22))
    told = verdicts([arm_figures(gap, gap), arm_figures(paper, gap)], 12)
    assert told == (
        "- c2, the paper's setting: **cannot tell**, +0.50 points of MAP@R (95 % interval -1.55 to +2.55 over 4 of 12 "
        "pairs of runs). It is less than a single pair deviates (1.29). On validation classes: +0.50 (95 % interval "
        "-1.55 to +2.55). Entropy of the weights: 0.9000."
    )
    ahead = finished(PAPER, over_folds(0.21, 0.211, 0.212, 0.213), ending="time")
    told = verdicts([arm_figures(ahead, gap)], 12)
    assert "**GSP is ahead of GAP**" in told
    assert "It is more than a single pair deviates (0.13)." in told
    assert told.endswith("Time cut 4 of its runs short.")
    assert "**GSP is behind GAP**" in verdicts([arm_figures(finished(PAPER, over_folds(0.1, 0.101, 0.1)), gap)], 12)
    single = verdicts([arm_figures(paper[:1], gap)], 12)
    assert "**too few runs to tell**, -1.00 points of MAP@R (1 of 12 pairs of runs). Entropy" in single


def repeated(*ahead: float) -> tuple[list[Run], list[Run]]:
    """Give GAP, and GSP that is ahead by this much in each fold, three repeats that hardly differ."""
    places = [(fold, seed) for fold in range(len(ahead)) for seed in range(3)]
    gap = finished(GAP, dict.fromkeys(places, 0.2))
    return gap, finished(PAPER, {(fold, seed): 0.2 + ahead[fold] + 0.0001 * seed for fold, seed in places})


def test_repeats_of_a_fold_do_not_count_as_folds() -> None:
    gap, paper = repeated(0.020, 0.001, 0.012, 0.002)
    arms = [arm_figures(gap, gap), arm_figures(paper, gap)]
    found = arms[1]["difference_from_gap"]
    means = [2.01, 0.11, 1.21, 0.21]
    assert found["folds"] == 4
    assert found["fold_error"] == pytest.approx(np.std(means, ddof=1) / 2)
    expected = stats.ttest_1samp(means, 0.0).confidence_interval(0.95)
    assert interval(by_folds(found)) == pytest.approx(expected, abs=1e-3)
    told = verdicts(arms, 12)
    assert "**GSP is ahead of GAP**" in told
    words = f"{expected.low:+.2f} to {expected.high:+.2f}, so that other folds could tell otherwise."
    assert f"By the means of 4 folds, whose runs share classes: {words}" in told
    sure = [arm_figures(runs, repeated(0.02, 0.021, 0.022, 0.02)[0]) for runs in repeated(0.02, 0.021, 0.022, 0.02)]
    assert "could tell otherwise" not in verdicts(sure, 12)


def test_the_promise_is_seen_only_where_every_whole_loss_is_ahead_by_folds_too() -> None:
    def judge(*ahead: float) -> str:
        gap, paper = repeated(*ahead)
        return seen([arm_figures(gap, gap), arm_figures(paper, gap)], 4).holds

    assert judge(0.02, 0.021, 0.022, 0.02) == "yes"
    assert judge(0.020, 0.001, 0.012, 0.002) == "partly"
    assert judge(0.01, -0.01, 0.01, -0.01) == "cannot tell"
    assert judge(-0.02, -0.021, -0.022, -0.02) == "no"
    # Of a loss without all folds nothing is said.
    assert judge(0.02, 0.021, 0.022) == "cannot tell"


def test_the_overview_says_what_folds_do_not_tell_and_names_every_loss() -> None:
    gap, paper = repeated(0.020, 0.001, 0.012, 0.002)
    proxies = [finished(Arm("pnca", name), over_folds(0.2, 0.21, 0.19, 0.2)) for name in ("gap", "gsp")]
    arms = [arm_figures(gap, gap), arm_figures(paper, gap), *(arm_figures(runs, proxies[0]) for runs in proxies)]
    found = seen(arms, 4)
    assert found.holds == "partly"
    low, high = stats.ttest_1samp([2.01, 0.11, 1.21, 0.21], 0.0).confidence_interval(0.95)
    assert f", which means of 4 folds do not tell: {low:+.2f} to {high:+.2f}, pnca +0.00" in found.because


def test_means_of_folds_have_a_mean_of_their_own() -> None:
    found = difference_of([[1.0, 1.2, 1.1], [4.0], [3.0]])._asdict()
    expected = stats.ttest_1samp([1.1, 4.0, 3.0], 0.0).confidence_interval(0.95)
    assert interval(by_folds(found)) == pytest.approx(expected, abs=2e-3)


def test_the_deviation_of_the_table_is_named_where_both_arms_have_repeats() -> None:
    gap = finished(GAP, over_folds(0.2, 0.2, 0.2, 0.2))
    paper = finished(PAPER, over_folds(0.19, 0.2, 0.21, 0.22))
    arms = [arm_figures(gap, gap), arm_figures(paper, gap)]
    for arm, repeats, std in zip(arms, (3, 3), (0.2, 0.4), strict=True):
        arm |= {"separate": {"repeats": repeats, "map": {"mean": 20.0, "std": std}}, "runs": 12}
    assert "(1.29) and more than repeats do (GAP 0.20, GSP 0.40)." in verdicts(arms, 12)
    arms[0]["separate"]["map"]["std"] = 0.6
    assert "and less than repeats do" in verdicts(arms, 12)
    # Of a repeat that lacks a fold, the deviation over whole repeats is not that of all runs.
    arms[1]["runs"] = 11
    assert "repeats do" not in verdicts(arms, 12)
    arms[1]["runs"] = 12
    arms[0] |= {"separate": {**arms[0]["separate"], "repeats": 1}, "runs": 4}
    assert "repeats do" not in verdicts(arms, 12)


def test_what_single_models_reach_follows_from_whole_repeats_of_the_runs() -> None:
    reached = np.random.default_rng(0).normal(0.2, 0.01, (4, 2))
    places = {(fold, seed): float(reached[fold, seed]) for fold in range(4) for seed in range(2)}
    runs = finished(PAPER, places | {(0, 2): 0.9})
    found = separate_figures(runs, 4)
    assert found is not None
    choices = [np.mean([reached[fold, seed] for fold, seed in enumerate(chosen)]) for chosen in np.ndindex(2, 2, 2, 2)]
    assert found["repeats"] == 2
    assert (found["map"]["mean"], found["map"]["std"]) == pytest.approx((100 * np.mean(choices), 100 * np.std(choices)))
    assert separate_figures(finished(PAPER, over_folds(0.2, 0.2)), 4) is None
    # A result of any age is enough, and one repeat deviates from nothing.
    once = finished(GAP, over_folds(0.2, 0.2, 0.21, 0.2))
    value = {"protocol": "fair", "arms": [{**arm_figures(once, once), "joined": None}]}
    value["runs"] = [run._asdict() for run in once]
    (arm,) = arms_of(value)
    assert arm["separate"]["repeats"] == 1
    assert separate(arm, "map") == "20.25"


def test_a_fold_with_fewer_runs_counts_as_much_as_the_others() -> None:
    uneven = finished(PAPER, {(0, 0): 0.3, (1, 0): 0.2, (1, 1): 0.1, (1, 2): 0.3})
    assert arm_figures(uneven, uneven)["map"]["mean"] == pytest.approx(25.0)
    even = finished(PAPER, {(0, 0): 0.3, (1, 0): 0.2})
    assert arm_figures(even, even)["map"]["mean"] == pytest.approx(25.0)


def test_a_choice_is_held_to_the_pairs_that_took_no_part_in_it() -> None:
    first = over_folds(0.2, 0.2, 0.2, 0.2)
    later = {(fold, seed): 0.2 for fold in range(4) for seed in (1, 2)}
    gap = finished(GAP, first | later)
    sharp = finished(SHARP, dict.fromkeys(first, 0.25) | {place: 0.2 + 0.001 * place[0] for place in later})
    told = told_of_search(gap, sharp, finished(LEARNED, dict.fromkeys(first, 0.21)))
    low, high = stats.ttest_1samp([0.1 * fold for fold in range(4) for _ in range(2)], 0.0).confidence_interval(0.95)
    expected = f"In the 8 pairs that took no part in the choice: +0.15 (95 % interval {low:+.2f} to {high:+.2f})"
    assert "chose out of 2 settings, +5.00 in the 4 pairs that all have" in told
    assert expected in told
    assert "took no part" not in told_of_search(gap[:4], finished(SHARP, dict.fromkeys(first, 0.25)))


def told_of_search(gap: list[Run], *others: list[Run]) -> str:
    every = [gap, *others]
    return verdicts_of_search([arm_figures(runs, gap) for runs in every], [run for runs in every for run in runs], 12)


def test_validation_chooses_by_pairs_because_folds_differ_by_more_than_settings() -> None:
    gap = finished(GAP, over_folds(0.2, 0.2), over_folds(0.44, 0.30))
    both = finished(LEARNED, over_folds(0.19, 0.19), over_folds(0.45, 0.31))
    # The easy fold alone would favour the first; test classes, where it is far ahead, have no say.
    worse = finished(SHARP, over_folds(0.4, 0.4), over_folds(0.47, 0.27))
    assert told_of_search(gap, worse, both).startswith(
        "- c2, learned, which validation chose out of 2 settings, +1.00 in the 2 pairs that all have:"
    )
    # Where a setting has not been trained, nothing is compared: what is left is the easy fold.
    easy = told_of_search(gap, worse[:1], both)
    assert easy.startswith("- c2, epsilon 20, which validation chose out of 2 settings, +3.00 in the 1 pair that all")


def test_a_setting_that_was_repeated_is_compared_by_the_runs_that_all_have() -> None:
    places = [(0, 0), (1, 0), (0, 1), (1, 1)]
    gap = finished(GAP, dict.fromkeys(places, 0.2), dict.fromkeys(places, 0.40))
    lucky = finished(SHARP, dict.fromkeys(places, 0.2), dict(zip(places, (0.40, 0.40, 0.50, 0.50), strict=True)))
    once = finished(LEARNED, over_folds(0.2, 0.2), over_folds(0.41, 0.41))
    assert best_arms(["c2"], [*gap, *lucky, *once]) == [LEARNED]
    assert "c2, learned" in told_of_search(gap, lucky, once)


def test_the_best_setting_looks_at_validation_of_whole_runs() -> None:
    gap = finished(GAP, over_folds(0.2, 0.2), over_folds(0.44, 0.30))
    sharp = finished(SHARP, over_folds(0.4, 0.4), over_folds(0.43, 0.29))
    learned = finished(LEARNED, over_folds(0.1, 0.1), over_folds(0.45, 0.31))
    assert best_arms(["c2"], [*gap, *sharp, *learned]) == [LEARNED]
    cut = finished(LEARNED, over_folds(0.1, 0.1), over_folds(0.45, 0.31), ending="time")
    assert best_arms(["c2"], [*gap, *sharp, *cut]) == [SHARP]
    for without in ([*gap], [*sharp], [*gap, *sharp[:1], *learned[1:]]):
        with pytest.raises(ValueError, match="no fold has every setting of the search that was tried with c2"):
            best_arms(["c2"], without)


def test_a_section_has_the_tables_that_there_are_rows_for() -> None:
    gap = finished(GAP, over_folds(0.2, 0.2))
    every = {
        "The paper's settings": [GAP, PAPER],
        "Other layers": [Arm("c2", "gmp"), Arm("c2", "vlad", "8x16")],
        "Other settings": [SHARP],
    }
    for head, arms in every.items():
        figures = [{**arm_figures(finished(arm, over_folds(0.2, 0.21)), gap), "joined": None} for arm in arms]
        shown = render_study(
            {"data": "cub", "protocol": "fair", "backbone": "keras/resnet50", "arms": figures, "runs": []}
        )
        assert [each for each in every if each in shown] == [head]


def test_part_of_a_table_says_how_much_there_is_and_what_is_missing() -> None:
    gap, paper = finished(GAP, over_folds(0.2, 0.2)), finished(PAPER, over_folds(0.21, 0.2))
    arms = [{**arm_figures(runs, gap), "joined": None} for runs in (gap, paper)]
    shown = render_study({"data": "cub", "protocol": "fair", "backbone": "keras/resnet50", "arms": arms, "runs": []})
    assert "| 2 of 12 |" in shown
    assert "+0.50 (error 0.50, 1 of 2 ahead)" in shown
    assert "have not been tried yet: c2: epsilon 20; learned;" in shown


def test_a_deviation_of_few_repeats_and_a_wide_embedding_are_said_to_be_so() -> None:
    gap = finished(GAP, over_folds(0.2, 0.2, 0.2, 0.2))
    around = {"mean": 20.0, "std": 0.3}
    joined, single = {"repeats": 2, "combinations": 16, "map_512D": around}, {"repeats": 2, "map": around}
    figures = arm_figures(finished(SHARP, over_folds(0.2, 0.2, 0.2, 0.2)), gap)
    part = {**figures, "separate": single, "joined": joined, "runs": 8}
    assert separate(part, "map") == concatenated(part) == "20.00 ± 0.30 (2 repeats)"
    whole = {**part, "separate": {**single, "repeats": 3}, "joined": {**joined, "repeats": 3}, "runs": 12}
    assert separate(whole, "map") == concatenated(whole) == "20.00 ± 0.30"
    wide = {**arm_figures(finished(Arm("c2", "vlad", "64x128"), {(0, 0): 0.2}), gap), "joined": None}
    assert fair_rows("cub", [wide], 12)[0]["setting"] == "64x128 (8192D)"
