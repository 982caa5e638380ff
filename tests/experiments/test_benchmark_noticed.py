"""What a reader of the tables might not notice is said beside them."""

from __future__ import annotations

from typing import Any

import pytest

from finished_runs import finished
from gspool.experiments.benchmark.arms import Arm
from gspool.experiments.benchmark.figures import arm_figures
from gspool.experiments.benchmark.noticed import equal_weights_told, memory_told, told_from_gap
from gspool.experiments.benchmark.store import Run

GAP = finished(Arm("c2", "gap"), {(fold, 0): 0.2 for fold in range(4)})


def row(pooling: str, *points: float) -> dict[str, Any]:
    places = {(fold, 0): 0.2 + gain / 100 for fold, gain in enumerate(points)}
    return arm_figures(finished(Arm("c2", pooling), places), GAP)


def test_rows_told_from_gap_are_named_with_their_side() -> None:
    rows = [row("gemean", 0.8, 0.9, 1.0, 0.9), row("delf", -1.0, -1.1, -1.0, -1.1), row("gmp", 1.0, -1.0, 0.5, -0.5)]
    told = told_from_gap([*rows, row("crow", 9.0)])
    assert told.startswith("Of 3 rows with 3 pairs or more, told from GAP on test classes: ahead c2 gemean +0.90 (")
    assert "; behind c2 delf -1.05 (" in told
    assert "gmp" not in told
    assert "crow" not in told
    assert told_from_gap([row("crow", 9.0)]) == ""


def test_a_row_that_folds_do_not_tell_is_said_to_be_so() -> None:
    places = [(fold, seed) for fold in range(2) for seed in range(3)]
    gap = finished(Arm("c2", "gap"), dict.fromkeys(places, 0.2))
    ours = finished(Arm("c2", "gmp"), {(fold, seed): 0.201 + 0.01 * fold for fold, seed in places})
    assert told_from_gap([arm_figures(ours, gap)]).endswith(", not by means of folds; behind none.")


@pytest.mark.parametrize(("entropy", "weights", "told"), [(0.99999, [0.9, 1.1], True), (0.99, [0.9, 1.1], False)])
def test_equal_weights_are_named_where_the_table_shows_them_as_equal(entropy, weights, told) -> None:
    arm = {"loss": "pnca", "pooling": "gsp", "variant": "", "entropy": entropy, "mean_weights": weights}
    assert ("With pnca a place weighs 0.900 to 1.100" in equal_weights_told([arm])) is told
    # Without a map nothing is known of places; another layer, or another setting, is not asked.
    assert equal_weights_told([arm | {"mean_weights": None}]) == ""
    assert equal_weights_told([arm | {"pooling": "delf"}, arm | {"variant": "learned"}]) == ""


def test_models_from_before_the_memory_are_counted_layer_by_layer() -> None:
    def runs(pooling: str, *steps: int) -> list[Run]:
        asked = {"loss": "xbm+c1", "pooling": pooling, "variant": ""}
        return [Run(asked, {"best_step": step}) for step in steps]

    told = memory_told([*runs("gap", 300, 1000, 1100), *runs("gsp", 1500)])
    assert "kept, 2 of 3 with gap, 0 of 1 with gsp are from before it" in told
    assert memory_told(GAP) == ""
