"""Pairs of runs whose steps were made by different code are counted and told."""

from __future__ import annotations

from gspool.experiments.benchmark.pair_steps import mixed_steps_told, steps_differ
from gspool.experiments.benchmark.store import Run

PAIR = ("c2 gsp", "c2 gap")
EARLY, LATE = "dc6d9e8" + "0" * 33, "c3adca5" + "0" * 33


def run(arm, commit, seed=0):
    return Run({"arm": arm, "fold": 0, "seed": seed}, {"origin": {"commit": commit}})


def test_only_pairs_across_the_change_are_counted():
    runs = [run("c2 gsp", EARLY), run("c2 gap", LATE), run("c2 gsp", EARLY, 1), run("c2 gap", EARLY, 1)]
    assert steps_differ(runs, [PAIR]) == (1, 2)
    assert "Of these 2 pairs 1 have one run from before" in mixed_steps_told(runs, [PAIR])


def test_what_has_no_other_pairs_is_named_as_the_page_calls_it():
    other = ("ms gsp", "ms gap")
    runs = [run("c2 gsp", EARLY), run("c2 gap", LATE), run("ms gsp", LATE), run("ms gap", LATE)]
    assert "Of these 2 pairs 1, all with c2 gsp, have one" in mixed_steps_told(runs, [PAIR, other])
    more = [*runs, run("ms gsp", EARLY, 1), run("ms gap", LATE, 1)]
    assert "Of these 3 pairs 2, among them all with c2 gsp, have one" in mixed_steps_told(more, [PAIR, other])
    assert "all with both, have one" in mixed_steps_told(runs, [PAIR, other], {"c2 gsp": "both"})


def test_commits_that_change_nothing_of_a_step_are_no_matter():
    runs = [run("c2 gsp", LATE), run("c2 gap", "99ef4d7" + "0" * 33), run("c2 gsp", EARLY, 1), run("c2 gap", EARLY, 1)]
    assert mixed_steps_told(runs, [PAIR]) == ""


def test_runs_from_outside_a_checkout_have_no_commit():
    assert steps_differ([run("c2 gsp", None), run("c2 gap", LATE)], [PAIR]) == (0, 1)


def test_half_a_pair_is_none():
    assert steps_differ([run("c2 gsp", EARLY), run("c2 gap", LATE, 1)], [PAIR]) == (0, 0)
