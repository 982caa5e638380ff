"""Trainings side by side give what each gives alone, in any number of processes."""

from __future__ import annotations

import pytest

from experiments.resident.tiny_sets import tiny
from gspool import Embedder
from gspool.experiments.benchmark.stand_in import striped
from gspool.experiments.resident import Job, Outcome, train_all
from gspool.experiments.resident.shared_embedding import share_embedding


def jobs(count: int) -> list[Job]:
    return [
        Job({"seed": seed}, tiny(seed=seed, max_steps=2), list(range(4, 8)), list(range(4))) for seed in range(count)
    ]


def outcomes(asked: list[Job], **options) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    undone = train_all(
        asked,
        striped(8, 4),
        striped(6, 4, seed=2),
        "cpu",
        lambda job, outcome: found.update({job.asked["seed"]: outcome}),
        **options,
    )
    assert len(undone) + len(found) == len(asked)
    return found


@pytest.mark.usefixtures("one_thread")
def test_two_processes_find_what_one_finds_and_one_that_breaks_does_not_stop_the_others() -> None:
    alone = outcomes(jobs(2))
    asked = jobs(3)
    asked[2].settings.loss.name = "no such loss"
    beside: dict[int, Outcome] = {}
    # Starting processes takes most of the time here, so that one crew shows both.
    with pytest.raises(RuntimeError, match=r"(?s)1 of 3 trainings broke; .*'seed': 2.*no such loss"):
        train_all(
            asked,
            striped(8, 4),
            striped(6, 4, seed=2),
            "cpu",
            lambda job, outcome: beside.update({job.asked["seed"]: outcome}),
            processes=2,
        )
    assert sorted(alone) == sorted(beside) == [0, 1]
    for seed, outcome in alone.items():
        assert [row["loss"] for row in beside[seed].curve] == [row["loss"] for row in outcome.curve]
        assert beside[seed].embeddings.equal(outcome.embeddings)


def test_no_training_begins_after_the_time_is_over() -> None:
    assert outcomes(jobs(2), seconds=-1.0) == {}


def test_a_training_begins_with_the_embedding_of_another() -> None:
    other = tiny(seed=7, max_steps=1)
    job = jobs(1)[0]
    own, shared, again = (
        outcomes([each])[0].curve[0]["loss"] for each in (job, job._replace(embedding_like=other), job)
    )
    assert own == again != shared


def test_embeddings_of_other_shapes_stay_apart() -> None:
    narrow, wide = Embedder("small_cnn", dim=4), Embedder("small_cnn", dim=8)
    before = narrow.head.embed.weight.clone()
    assert not share_embedding(narrow, wide)
    assert not share_embedding(narrow, object())
    assert narrow.head.embed.weight.equal(before)
