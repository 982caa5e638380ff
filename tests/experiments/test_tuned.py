"""The study of tuned networks: its grid, both ways of training, and tables of what is finished."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gspool.experiments import commands, tuned
from gspool.experiments.experiment import RunOptions
from gspool.experiments.tuned import AS_THE_PAPER, HEAD_FIRST, TRIES, WAYS, TunedSettings, asked_of, rows_of
from gspool.pooling.embedding import check_head_options
from gspool.provenance import read_result, write_result
from gspool.training.compare_data import Tokens, create_sets

NAME = "tuned_cub_resnet50_227_pnca"


@pytest.mark.parametrize("loss", ["pnca", "c2"])
def test_every_layer_exists_and_has_the_same_tries_in_both_ways(loss: str) -> None:
    chosen = TunedSettings(loss=loss)
    for row, own in rows_of(loss).items():
        check_head_options(own.layer, own.options)
        rates = {way: [asked_of(chosen, row, way, each, 0, 0)["lr"] for each in range(chosen.tries)] for way in WAYS}
        assert rates[HEAD_FIRST] == rates[AS_THE_PAPER] == [lr for lr, _ in TRIES]


def run_of(row: str, way: str, number: int, pair: tuple[int, int], validation: float, test: float) -> dict[str, Any]:
    measured = {"entropy": None if row == "gemean" else 0.9, "energy_entropy": 0.8}
    return {
        "asked": asked_of(TunedSettings(), row, way, number, *pair),
        "found": {
            "validation": validation,
            "test": {"map@r": test, "p@1": 2 * test, "p@r": test},
            "best_step": 400,
            **({"head_alone": {"map@r": test - 3}} if way == HEAD_FIRST else {}),
            "before": measured,
            "after": measured,
        },
    }


@pytest.fixture
def stopped() -> dict[str, Any]:
    """A study that was stopped: gap and gemean have three pairs, gsp sharp two, and its second try is best."""
    runs = []
    for pair in ((0, 0), (1, 0), (2, 0)):
        runs.append(run_of("gap", HEAD_FIRST, 0, pair, 30.0, 18.0))
        runs.append(run_of("gemean", HEAD_FIRST, 0, pair, 31.0, 19.0 + pair[0]))
    runs.append(run_of("gsp sharp", HEAD_FIRST, 0, (0, 0), 32.0, 99.0))
    for pair in ((0, 0), (1, 0)):
        runs.append(run_of("gsp sharp", HEAD_FIRST, 1, pair, 33.0, 20.5 + pair[0]))
    value = {"loss": "pnca", "steps": 800, "first_seed": 0, "runs": runs}
    return {"value": value, "seeds": [0]}


def test_a_stopped_study_compares_the_pairs_that_two_rows_share(stopped: dict[str, Any]) -> None:
    gap, gemean, gsp = tuned.layers_table(stopped).splitlines()[2:]
    assert "| 1e-05, head x 10, of 1 tries | 3 | 30.00 | 18.00 ± 0.00 |" in gap
    # Against GAP in its own three pairs; it is the best average itself.
    assert "|  | +2.00 (" in gemean
    # The second try was chosen: 20.5 and 21.5 against GeMean's 19 and 20, and GAP's 18.
    assert "| 1e-05, head x 1 | 2 | 33.00 | 21.00 ± 0.71 |" in gsp
    assert "| +1.50 (+1.50 to +1.50) | +3.00 (" in gsp
    assert gsp.endswith("| 400 | 0.900 → 0.900 |")
    assert tuned.missing(stopped) == "136 of 144 trainings"


def test_the_best_average_is_looked_for_in_both_ways(stopped: dict[str, Any]) -> None:
    runs = stopped["value"]["runs"]
    runs += [run_of("gap", AS_THE_PAPER, 0, pair, 32.0, 20.0) for pair in ((0, 0), (1, 0))]
    found = tuned.chosen_runs(stopped["value"])
    assert tuned.best_of(found, tuned.AVERAGES) == tuned.best_of(found, ("gap",)) == ("gap", AS_THE_PAPER)
    assert tuned.best_of(found, ("delf",)) is None
    gsp = tuned.layers_table(stopped).splitlines()[4]
    assert gsp.count("| +1.00 (") == 2
    gap, gemean, _ = tuned.ways_table(stopped).splitlines()[2:]
    assert gap.startswith("| gap | 15.00 ± 0.00 | 18.00 ± 0.00 | 20.00 ± 0.00 | -2.00 (")
    assert gemean == "| gemean | 17.00 ± 1.00 | 20.00 ± 1.00 |  |  | 0.800 | 0.800 |  |"


def test_another_size_takes_the_rates_that_227_pixels_chose(stopped: dict[str, Any], tmp_path: Path) -> None:
    write_result(tmp_path / f"{NAME}.json", stopped["value"], command="", seeds=[0])
    weights = tmp_path / "weights.safetensors"
    weights.touch()
    settings = TunedSettings(size=448, tries=0, layers="gap,gsp sharp", ways=HEAD_FIRST, weights=str(weights))
    options = RunOptions(results=tmp_path, settings=settings)
    tuned.check(options)
    assert tuned.tries_at_227(options) == {
        ("gap", HEAD_FIRST): 0,
        ("gemean", HEAD_FIRST): 0,
        ("gsp sharp", HEAD_FIRST): 1,
    }
    with pytest.raises(ValueError, match="no runs of delf, head first"):
        tuned.check(replace(options, settings=replace(settings, layers="gap,delf")))


def test_unknown_layers_and_missing_weights_are_refused_before_anything_is_read() -> None:
    with pytest.raises(ValueError, match="--layers are gap, gemean"):
        tuned.check(RunOptions(settings=TunedSettings(layers="gap,nothing")))
    with pytest.raises(FileNotFoundError, match="--weights"):
        tuned.check(RunOptions(settings=TunedSettings(weights="nowhere.safetensors")))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny study with every layer that has parameters of its own kind."""
    work = tmp_path_factory.mktemp("tuned")
    words = ["--layers", "gap,gemean+gsp sharp", "--tries", "1"]
    assert commands.run("reproduce", ["tuned", "--quick", "--device", "cpu", "--work", str(work), *words]) == 0
    return work


def test_a_tiny_run_trains_both_ways_and_draws_what_was_selected(finished: Path) -> None:
    results = finished / "quick" / "results"
    record = read_result(results / f"{NAME}.json")
    runs = {(run["asked"]["row"], run["asked"]["way"]): run["found"] for run in record["value"]["runs"]}
    assert len(runs) == len(record["value"]["runs"]) == 4
    for (row, way), found in runs.items():
        assert ("head_alone" in found) == (way == HEAD_FIRST)
        assert (found["before"]["entropy"] < 0.999) == ("sharp" in row)
        # With the head first, the state before the first step takes part in the choice.
        assert found["curve"].startswith("0:") == (way == HEAD_FIRST)
    # All layers start from the same network.
    assert len({found["before"]["energy_entropy"] for found in runs.values()}) == 1
    for name in ("entropy", "weights", "energy"):
        assert (results / "images" / f"{NAME}_{name}.png").stat().st_size > 5_000
    assert (finished / "quick" / "tuned" / f"{NAME}_pictures.png").stat().st_size > 5_000


def test_another_call_trains_only_what_is_missing_and_draws_without_training(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = finished / "quick" / "results" / f"{NAME}.json"
    before, picture = read_result(path)["value"], finished / "quick" / "tuned" / f"{NAME}_pictures.png"
    words = ["tuned", "--quick", "--device", "cpu", "--work", str(finished)]
    monkeypatch.setattr(tuned, "fit", None)
    assert commands.run("reproduce", [*words, "--layers", "gap", "--tries", "1"]) == 0
    picture.unlink()
    monkeypatch.setattr(tuned, "extract_tokens", None)
    assert commands.run("reproduce", [*words, "--train", "false"]) == 0
    assert picture.is_file()
    assert read_result(path)["value"] == before


def test_a_tiny_run_at_another_size_takes_its_rates_from_the_first(finished: Path) -> None:
    words = ["tuned", "--quick", "--device", "cpu", "--work", str(finished), "--layers", "gap"]
    assert commands.run("reproduce", [*words, "--size", "448", "--tries", "0"]) == 0
    runs = read_result(finished / "quick" / "results" / "tuned_cub_resnet50_448_pnca.json")["value"]["runs"]
    assert [(run["asked"]["way"], run["asked"]["lr"]) for run in runs] == [(way, TRIES[0][0]) for way in WAYS]


def test_a_training_that_ran_out_of_time_goes_on(finished: Path, tmp_path: Path) -> None:
    options = RunOptions(work=tmp_path, quick=True, settings=TunedSettings())
    backbone = tuned.tokens_backbone(options, options.settings)
    features = tuned.FeatureConfig(folder=str(finished / "quick" / "features"))
    sets = create_sets(tuned.data_of(options))
    tokens = Tokens(*tuned.extract_tokens(backbone, sets, features, name="small_cnn"))
    work = tuned.make_worker(options, tokens, in_memory=True)
    asked = asked_of(options.settings, "gsp", HEAD_FIRST, 0, 1, 0)
    whole = work(asked, 0.0)
    assert work(asked, 0.001) is None
    assert not [*(tmp_path / "tuned" / "trainings").iterdir()]  # it was not even begun
    assert work(asked, 0.01) is None
    assert [*(tmp_path / "tuned" / "trainings").iterdir()]
    rest = work(asked, 0.0)
    assert {**(rest or {}), "seconds": 0} == {**(whole or {}), "seconds": 0}
    assert not [*(tmp_path / "tuned" / "trainings").iterdir()]
