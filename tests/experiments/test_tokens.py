"""The synthetic study: its hulls by a second computation, its training by its laws, its command."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import linprog

from gspool.experiments import commands, tokens, tokens_section
from gspool.experiments.experiment import NOT_RUN
from gspool.experiments.run_status import status
from gspool.experiments.tokens_hulls import hull_overlap
from gspool.experiments.tokens_training import RANGE, TokenModel, TokenSettings, draw_samples, train_tokens
from gspool.provenance import origin_here, read_result

TINY = TokenSettings(epochs=3, evaluate_every=1, samples_per_class=8, prototypes=8, lr=1e-2)


def inside(point: np.ndarray, corners: np.ndarray) -> bool:
    """Whether a point is a mean of others, with weights found by a linear programme."""
    equal = np.vstack([corners.T, np.ones(len(corners))])
    return linprog(np.zeros(len(corners)), A_eq=equal, b_eq=np.append(point, 1.0)).status == 0


def test_hulls_overlap_as_a_linear_programme_says() -> None:
    draws = np.random.default_rng(3)
    centres = draws.uniform(-1, 1, (6, 2))
    labels = np.repeat(np.arange(6), 7)
    points = centres[labels] + draws.normal(0, 0.35, (42, 2))
    expected = 0
    for first in range(6):
        for second in range(first + 1, 6):
            a, b = points[labels == first], points[labels == second]
            # A common point: weights over the one's corners and over the other's that meet.
            equal = np.vstack([np.hstack([a.T, -b.T]), np.repeat([[1, 0], [0, 1]], 7, axis=1)])
            expected += linprog(np.zeros(14), A_eq=equal, b_eq=[0, 0, 1, 1]).status == 0
    strangers = [any(inside(points[i], points[labels == c]) for c in range(6) if c != labels[i]) for i in range(42)]
    found = hull_overlap(points, labels)
    assert 0 < expected < 15
    assert found.pairs == expected
    assert found.strangers == pytest.approx(np.mean(strangers))


def test_training_is_repeatable_and_tokens_stay_in_their_range() -> None:
    settings = replace(TINY, pooling="gsp", lr=0.5)
    first, second = train_tokens(settings), train_tokens(settings)
    assert first.curve == second.curve
    assert torch.equal(first.tokens, second.tokens)
    assert float(first.tokens.abs().max()) == pytest.approx(RANGE)
    assert first.tokens.shape == (68, 2)
    assert first.pooled.shape == (16 * 8, 2)


def test_average_pooling_gives_background_its_share_of_the_tokens() -> None:
    settings = replace(TINY, pooling="gap")
    test = draw_samples("test", settings)
    expected = (test.bags >= test.first_background).double().mean()
    assert train_tokens(settings).background_weight == pytest.approx(float(expected), abs=1e-6)


def test_training_separates_what_it_is_shown() -> None:
    outcome = train_tokens(replace(TINY, pooling="gsp", epochs=25))
    assert outcome.map_at_r > outcome.curve[0] + 0.1
    assert outcome.background_weight < 0.45


def test_patience_ends_a_training_that_does_not_improve() -> None:
    outcome = train_tokens(replace(TINY, lr=0.0, epochs=50, patience=3))
    assert outcome.epochs == 4
    seldom = train_tokens(replace(TINY, lr=0.0, epochs=50, patience=3, evaluate_every=2))
    assert (seldom.epochs, len(seldom.curve)) == (6, 3)


def test_the_model_pools_without_normalising() -> None:
    torch.manual_seed(0)
    model = TokenModel(5, replace(TINY, pooling="gap"))
    pooled = model.pool(torch.tensor([[0, 0, 3, 4]])).pooled
    torch.testing.assert_close(pooled[0], (2 * model.tokens[0] + model.tokens[3] + model.tokens[4]) / 4)


@pytest.mark.parametrize(
    ("gap", "gsp", "pairs", "holds"),
    [
        ("1 of 6", "5 of 6", 0.5, "yes"),
        ("1 of 6", "3 of 6", 0.5, "partly"),
        ("4 of 6", "6 of 6", 0.0, "partly"),
        ("1 of 6", "1 of 6", 5.8, "no"),
    ],
)
def test_hulls_lie_apart_where_they_do_with_most_seeds(gap: str, gsp: str, pairs: float, holds: str) -> None:
    rows = [
        {"layer": "GAP", "MAP@R": 56.0, "seeds without overlap": gap, "pairs of hulls that overlap": 5.8},
        {"layer": "GSP", "MAP@R": 97.0, "seeds without overlap": gsp, "pairs of hulls that overlap": pairs},
    ]
    assert tokens.seen({"rows": rows}).holds == holds


def token_run(figure: float, pairs: int, epochs: int) -> dict[str, float]:
    same = {"p@1": 0.9, "strangers_inside": 0.1, "on_background": 0.5}
    return {"map@r": figure, "overlapping_pairs": pairs, "epochs": epochs, **same}


def token_record() -> dict:
    """The committed figures, with those of every seed: GAP's fifth stopped early, and its hulls overlap."""
    gap = [(0.60, 0, 240), (0.61, 3, 220), (0.61, 4, 230), (0.62, 2, 200), (0.31, 25, 65), (0.61, 1, 255)]
    gsp = [(0.92, 3, 500), (0.98, 0, 600), (1.0, 0, 440), (1.0, 0, 600), (0.97, 0, 455), (0.99, 0, 465)]
    layers = {"gap": gap, "gsp": gsp}
    rows = [
        tokens.summary(layer, {seed: token_run(*run) for seed, run in enumerate(runs)})
        for layer, runs in layers.items()
    ]
    return {"value": {"rows": rows, "settings": asdict(TokenSettings()), "shown_seed": 1}}


def test_the_figures_of_every_seed_are_kept() -> None:
    gap, _ = token_record()["value"]["rows"]
    assert gap["by_seed"]["4"] == {"MAP@R": 31.0, "pairs of hulls that overlap": 25, "epochs": 65}
    assert gap["pairs of hulls that overlap"] == pytest.approx(35 / 6, abs=0.05)


def test_a_run_that_stopped_early_is_named_and_medians_stand_beside_means() -> None:
    record = token_record()
    page = tokens_section.written(record)
    assert (
        "GAP seed 4 after 65 epochs (others 230), with MAP@R 31.0 and 25 overlapping pairs (others 61.0 and 2)" in page
    )
    assert page.count("after 65 epochs") == page.count(" epochs (others ") == 1
    assert "5.8 overlap with GAP and 0.5 with GSP on average (medians 2.5 and 0)" in page
    assert "| MAP@R, median |" in page
    # The mean of 0, 3, 4, 2, 25 and 1, which the result holds as 5.8.
    assert "| 5.83 | 2.50 | 1 of 6 |" in page
    ahead = [32.0, 37.0, 39.0, 38.0, 66.0, 38.0]
    low, high = stats.ttest_1samp(ahead, 0.0).confidence_interval(0.95)
    assert f", seed by seed +41.7 (95 % interval {low:+.1f} to {high:+.1f}); of the 120 pairs" in page
    assert "| 4 | 31.00 | 97.00 | 25 | 0 | 65 | 455 |" in page
    assert "(medians 61.0 and 98.5)" in tokens.seen(record["value"]).because
    for row in record["value"]["rows"]:
        row["by_seed"].pop("4")
    assert "Stopped far earlier" not in tokens_section.written(record)


def test_a_result_without_figures_by_seed_is_shown_too() -> None:
    record = token_record()
    for row in record["value"]["rows"]:
        row.pop("by_seed")
    page = tokens_section.written(record)
    assert "5.8 overlap with GAP and 0.5 with GSP on average, none with 1 of 6 and 5 of 6 seeds" in page
    assert "median |" not in page
    assert "seed by seed" not in page
    assert tokens.seen(record["value"]).holds == "yes"


def test_one_run_does_not_decide_which_layer_overlaps_less() -> None:
    value = token_record()["value"]
    gap, gsp = value["rows"]
    # Neither layer lies apart with most seeds; by means GAP overlaps more, by medians it does not.
    gap["seeds without overlap"] = gsp["seeds without overlap"] = "3 of 6"
    for seed, run in gsp["by_seed"].items():
        run["pairs of hulls that overlap"] = 3 if seed != "4" else 4
    assert gsp["pairs of hulls that overlap"] < gap["pairs of hulls that overlap"]
    assert tokens.seen(value).holds == "no"


def test_a_tiny_run_is_written_drawn_shown_and_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["tokens", "--quick", "--work", str(tmp_path)]
    assert commands.run("reproduce", words) == 0
    results = tmp_path / "quick" / "results"
    value = read_result(results / "tokens.json")["value"]
    assert [row["layer"] for row in value["rows"]] == ["GAP", "GSP"]
    assert [[*row["by_seed"]] for row in value["rows"]] == [["0"], ["0"]]
    assert (results / "images" / "tokens.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page = tokens.EXPERIMENT.render(results)
    assert f"MAP@R {value['rows'][0]['MAP@R']:.1f} with GAP" in page
    assert "New samples of the 16 trained classes" in page
    assert "at most 2 epochs, validated every 1" in page
    assert tokens.EXPERIMENT.verdict is not None
    assert tokens.EXPERIMENT.verdict(read_result(results / "tokens.json")).holds == "cannot tell"

    def refuse(*_: object) -> None:
        raise AssertionError("a finished training was made again")

    monkeypatch.setattr(tokens, "trained", refuse)
    # At another commit, what was trained keeps the certificate of its own.
    before = read_result(results / "tokens.json")["commit"]
    monkeypatch.setattr(tokens, "origin_here", lambda **_: {**origin_here(), "commit": "0123456789"})
    assert commands.run("reproduce", words) == 0
    assert read_result(results / "tokens.json")["commit"] == before
    monkeypatch.undo()
    monkeypatch.setattr(tokens, "origin_here", lambda **_: {**origin_here(), "commit": "0123456789"})
    assert commands.run("reproduce", [*words, "--seeds", "0,1"]) == 0
    origins = read_result(results / "tokens.json")["origins"]
    assert [(each["commit"], each["runs"]) for each in origins] == [(before, 2), ("0123456789", 2)]
    assert tokens.EXPERIMENT.render(tmp_path) == NOT_RUN


def test_a_run_of_a_few_seeds_drops_none_and_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = iter([token_run(0.5, 3, 10), token_run(0.75, 0, 20), token_run(0.7, 1, 30), token_run(0.95, 0, 40)])
    monkeypatch.setattr(tokens, "trained", lambda _: next(made))
    monkeypatch.setattr(tokens, "draw", lambda *_: None)
    words = ["tokens", "--work", str(tmp_path / "work"), "--results", str(tmp_path), "--seeds"]
    path = tmp_path / "tokens.json"
    assert commands.run("reproduce", [*words, "3"]) == 0
    assert [row["std"] for row in read_result(path)["value"]["rows"]] == [None, None]
    page = tokens.EXPERIMENT.render(tmp_path)
    assert page.startswith("**Not whole yet.** Missing: 5 of 6 seeds (0, 1, 2, 4, 5); `gspool reproduce tokens`")
    assert "| one seed |" in page
    assert tokens.headlines(read_result(path)["value"])[0].ours == "50.0 (one seed)"
    assert status(tokens.EXPERIMENT, tmp_path).text.endswith("missing: 5 of 6 seeds (0, 1, 2, 4, 5)")
    assert tokens.seen(read_result(path)["value"]).holds == "cannot tell"

    assert commands.run("reproduce", [*words, "1"]) == 0
    record = read_result(path)
    assert record["seeds"] == [1, 3]
    assert record["command"] == "gspool reproduce tokens --seeds 1,3 --device cpu"
    assert record["value"]["rows"][0]["MAP@R"] == pytest.approx(60.0)
    assert record["value"]["rows"][0]["std"] == pytest.approx(np.std([50, 70], ddof=1), abs=0.01)

    # Elsewhere, the trainings of the other seed are not at hand.
    (tmp_path / "work" / "tokens" / "trainings.jsonl").unlink()
    before = path.read_bytes()
    capsys.readouterr()
    assert commands.run("reproduce", [*words, "1"]) == 1
    told = capsys.readouterr().err
    assert "holds seeds 1, 3, and a run of 1 would drop 3" in told
    assert "--seeds 1,3" in told
    assert path.read_bytes() == before


def test_the_committed_result_has_all_seeds(project: Path) -> None:
    assert tokens.EXPERIMENT.unfinished(project / "results") == ""
    assert "Not whole" not in tokens.EXPERIMENT.render(project / "results")
