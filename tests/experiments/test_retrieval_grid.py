"""Which trainings of the retrieval benchmarks are wanted: settings of the paper, order, options."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from finished_trainings import finished
from gspool import cli
from gspool.experiments import benchmark, components, mu, screening
from gspool.experiments.benchmark import (
    BenchmarkSettings,
    best_variants,
    chosen_by_validation,
    search_variants,
    wanted_variants,
)
from gspool.experiments.experiment import RunOptions
from gspool.experiments.retrieval_figures import by_variant
from gspool.experiments.retrieval_paper import conventional_values, layer_value, paper_values
from gspool.experiments.retrieval_study import StudySettings, jobs_of, study_of
from gspool.experiments.retrieval_training import (
    LOSSES,
    Variant,
    config_of,
    layer_variants,
    paper_variants,
    run_folder,
    share_embedding,
    start_from_tokens,
    stripes,
    train_config,
)
from gspool.models import create_backbone
from gspool.pooling import GSP
from gspool.provenance import read_result
from gspool.training.metric_learning import build_loss, build_model
from gspool.training.presets import preset


def config(variant: Variant, data: str = "cub", protocol: str = "fair", backbone: str = "keras/resnet50"):
    return train_config(variant, data, protocol, backbone)


def study(variants, protocol: str = "fair", options: RunOptions | None = None):
    return study_of("probe", options or RunOptions(), protocol, variants)


def test_the_papers_settings_of_every_protocol() -> None:
    pair = train_config(Variant("c2", "gsp"), "cub", "fair", "keras/resnet50", "w.safetensors", 7)
    assert pair.model.pooling_options == {"prototypes": 64, "mu": 0.3, "epsilon": 5.0, "warm_start": 1024}
    assert (pair.data.classes_per_batch, pair.optimiser.lr, pair.trainer.patience) == (8, 1e-5, 15)
    assert (pair.loss.zsr, pair.trainer.seed, pair.schedule.warmup_epochs) == (0.1, 7, 0.0)
    assert pair.model.backbone_options == {"weights": "w.safetensors"}
    proxy = config(Variant("panchor", "gsp"), "sop", backbone="bninception")
    assert (proxy.data.classes_per_batch, proxy.schedule.warmup_epochs, proxy.optimiser.lr) == (32, 1.0, 5e-6)
    assert (proxy.model.pooling_options["epsilon"], proxy.model.pooling_options["prototypes"]) == (0.5, 128)
    plain = config(Variant("pnca", "gap"))
    assert (plain.model.pooling_options, plain.loss.zsr) == ({}, 0.0)
    patience = [config(Variant("c2", "gsp"), data, "tuning").trainer.patience for data in ("cub", "sop")]
    assert patience == [10, 7]
    usual = config(Variant("xbm+c1", "gap"), "cars196", "conventional")
    assert (usual.data.batch_size, usual.optimiser.weight_decay, usual.trainer.monitor_split) == (112, 4e-4, "test")
    inception = config(Variant("xbm+c1", "gap"), "cub", "conventional", "bninception")
    assert (inception.data.batch_size, inception.optimiser.weight_decay, inception.model.dim) == (128, 1e-4, 512)
    libc, own = config(Variant("libc", "gsp"), "cub", "conventional"), preset("paper/cub-libc")
    assert (libc.optimiser, libc.schedule, libc.model.freeze) == (own.optimiser, own.schedule, own.model.freeze)
    with pytest.raises(ValueError, match="--protocol conventional"):
        wanted_variants(BenchmarkSettings(losses="c2,libc"))


def test_a_variant_changes_what_it_names_and_nothing_else() -> None:
    changes = {"optimiser.multipliers": {"prototypes": 100.0}, "loss.zsr": 0.0, "optimiser.lr": 1e-4}
    variant = Variant("c2", "gsp", "sharp", {"epsilon": 20.0}, changes)
    changed, paper = config(variant), config(Variant("c2", "gsp"))
    assert changed.model.pooling_options == {**paper.model.pooling_options, "epsilon": 20.0}
    assert (changed.optimiser.multipliers, changed.loss.zsr) == ({"prototypes": 100.0}, 0.0)
    assert variant.differences == {"model.pooling_options.epsilon": 20.0, **changes}
    changed.model.pooling_options["epsilon"], changed.optimiser.multipliers = 5.0, {}
    changed.loss.zsr, changed.optimiser.lr = 0.1, 1e-5
    assert changed == paper


def test_a_loss_may_name_the_start_of_its_memory() -> None:
    early, usual = config(Variant("xbm+c1@100", "gap")), config(Variant("xbm+c1", "gap"))
    assert build_loss(early.loss, 2, 8, 32, seed=0).metric.start == 100
    early.loss.options = {}
    assert early == usual
    for wrong in ("c2@100", "xbm+c1@soon"):
        with pytest.raises(ValueError, match=r"xbm\+c1@100"):
            config(Variant(wrong, "gap"))


def test_every_setting_of_the_search_can_be_configured() -> None:
    paper = config(Variant("c2", "gsp"))
    found = [config(variant) for variant in search_variants(("c2",))]
    assert all(each != paper for each in found)
    assert len({str(each) for each in found}) == len(found) == 11
    scale = next(each for each in search_variants(("c2",)) if "scale" in each.setting)
    assert config(scale).loss.zsr_options == {"scale": 1.0}


def test_the_papers_values_are_those_it_prints() -> None:
    assert paper_values("cub", "c2", "gap").map == 20.58
    assert paper_values("cars196", "panchor", "gsp").p1 == 75.88
    assert paper_values("sop", "xbm+c1", "gsp").map_joined == 50.65
    assert all(paper_values("cub", loss, pooling) for loss in LOSSES for pooling in ("gap", "gsp"))
    assert layer_value("ms", "cbam") is None
    # The paper adds max pooling to both layers in that protocol.
    assert conventional_values("inshop", "bninception", "xbm+c1", "gap+gmp").map == 61.39
    assert conventional_values("inshop", "bninception", "xbm+c1", "gap") is None
    assert conventional_values("cub", "keras/resnet50", "libc", "gsp") == (70.70, None, (80.72, 88.18, 92.64))


def test_every_layer_of_the_pooling_table_can_be_built_and_has_its_value() -> None:
    for variant in layer_variants(("c2",)):
        model = build_model(config(variant, backbone="resnet20"))
        assert model.out_dim == (8192 if variant.setting == "64x128" else 128), variant.name
        assert layer_value("c2", variant.pooling, variant.setting) is not None, variant.name


def test_a_name_stands_for_one_training_in_all_studies() -> None:
    studies = [paper_variants(LOSSES), layer_variants(), search_variants(), components.VARIANTS]
    for group in (studies, [mu.VARIANTS, screening.all_variants()]):
        named: dict[str, Variant] = {}
        for variant in (each for variants in group for each in variants):
            assert named.setdefault(variant.name, variant).differences == variant.differences


def test_wherever_the_grid_is_cut_off_it_is_balanced() -> None:
    variants = paper_variants(("c2", "pnca"))
    jobs = jobs_of(study(variants))
    assert len(jobs) == 48
    for count in range(1, 49):
        by_name = Counter(job["variant"] for job in jobs[:count])
        assert max(by_name.values()) - min(by_name[variant.name] for variant in variants) <= 1
        places = Counter((job["loss"], job["fold"], job["seed"]) for job in jobs[:count])
        assert sum(number == 1 for number in places.values()) <= 1, "at most one training is without its pair"
    # Other settings come after the paper's in every repeat.
    jobs = jobs_of(study([*paper_variants(("c2",)), *search_variants(("c2",))[:2]]))
    order = [(job["seed"], bool(job["setting"]), job["fold"]) for job in jobs]
    assert order == sorted(order)
    assert [job["variant"] for job in jobs[:2]] == ["c2 gap", "c2 gsp"]


def test_pairs_share_a_seed_and_places_do_not(tmp_path: Path) -> None:
    wanted = study(paper_variants(("c2",)), options=RunOptions(work=tmp_path))
    variants = {each.name: each for each in wanted.variants}
    places = {
        (job["fold"], job["seed"], config_of(wanted, variants[job["variant"]], job["fold"], job["seed"]).trainer.seed)
        for job in jobs_of(wanted)
    }
    assert len(places) == len({seed for _, _, seed in places}) == 12
    assert len({run_folder(wanted, job) for job in jobs_of(wanted)}) == 24


def test_other_weights_or_steps_are_another_training(tmp_path: Path) -> None:
    first, copy, other = (tmp_path / name for name in ("a.safetensors", "b.safetensors", "c.safetensors"))
    first.write_bytes(b"one")
    copy.write_bytes(b"one")
    other.write_bytes(b"two")

    def asked(**chosen):
        return jobs_of(study([Variant("c2", "gap")], options=RunOptions(settings=StudySettings(**chosen))))[0]

    assert asked(weights=str(first)) == asked(weights=str(copy)) != asked(weights=str(other))
    assert asked(weights=str(first)) != asked(weights=str(first), max_steps=5)


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ({}, ["c2 gap", "c2 gsp", "pnca gap", "pnca gsp"]),
        ({"protocol": "conventional"}, ["xbm+c1 gap+gmp", "xbm+c1 gmp+gsp"]),
        ({"losses": "ms", "poolings": "gap, delf"}, ["ms gap", "ms delf"]),
        ({"losses": "c2", "variants": "learned; epsilon 50"}, ["c2 gsp learned", "c2 gsp epsilon 50"]),
        ({"losses": "c2", "arms": "both", "variants": "learned"}, ["c2 gap", "c2 gsp", "c2 gsp learned"]),
        ({"losses": "c2", "arms": "search", "variants": "learned"}, ["c2 gsp learned"]),
        ({"losses": "c2", "poolings": "all"}, 8),
        ({"losses": "c2", "poolings": "table"}, 21),
        ({"losses": "c2", "variants": "search"}, 11),
        ({"losses": "c2", "arms": "both"}, 13),
    ],
)
def test_options_choose_variants(chosen: dict[str, str], names: list[str] | int) -> None:
    found = [variant.name for variant in wanted_variants(BenchmarkSettings(**chosen))]
    assert names in (found, len(found))


def test_validation_classes_choose_among_pairs_that_all_settings_have() -> None:
    places = [(fold, 0) for fold in range(4)]

    def runs(name: str, validation: float, test: float, where=places):
        variant = next(each for each in [Variant("c2", "gap"), *search_variants(("c2",))] if each.name == name)
        return finished(variant, dict.fromkeys(where, test), dict.fromkeys(where, validation))

    made = by_variant(
        [
            *runs("c2 gap", 0.40, 0.20),
            *runs("c2 gsp epsilon 20", 0.41, 0.10),
            *runs("c2 gsp epsilon 50", 0.39, 0.90),
            # Better only in a place that the others do not have.
            *runs("c2 gsp learned", 0.40, 0.20),
            *runs("c2 gsp learned", 0.99, 0.20, [(0, 1)]),
        ]
    )
    choice = chosen_by_validation(made, "c2")
    assert (choice.variant.setting, choice.among, choice.places) == ("epsilon 20", 3, tuple(places))
    assert best_variants(["c2"], made) == [choice.variant]
    assert wanted_variants(BenchmarkSettings(losses="c2", variants="best"), made) == [choice.variant]
    with pytest.raises(ValueError, match="no fold and seed has GAP and every tried setting of pnca"):
        best_variants(["pnca"], made)


def test_layers_start_with_the_embedding_of_gsp() -> None:
    wanted = study([Variant("c2", "gap"), Variant("c2", "gsp")], options=RunOptions(quick=True))
    gap, gsp = (build_model(config_of(wanted, variant, 0, 0)) for variant in wanted.variants)
    assert not torch.equal(gap.head.embed.weight, gsp.head.embed.weight)
    share_embedding(gap, gsp)
    assert torch.equal(gap.head.embed.weight, gsp.head.embed.weight)
    wider = config_of(wanted, Variant("c2", "gap"), 0, 0)
    wider.model.dim = 9
    share_embedding(build_model(wider), gsp)  # of another shape: left alone


def test_prototypes_can_start_from_local_features() -> None:
    wanted = study([Variant("c2", "gsp", "tokens", {"warm_start": 0}, tokens=8)], options=RunOptions(quick=True))
    models = [build_model(config_of(wanted, wanted.variants[0], 0, 0)) for _ in range(2)]
    images = stripes(4, 4)
    for model in models:
        start_from_tokens(model, images, 8, seed=3)
    layers = [next(part for part in model.modules() if isinstance(part, GSP)) for model in models]
    assert torch.equal(layers[0].prototypes, layers[1].prototypes)
    with torch.no_grad():
        features = models[0].eval().feature_map(images.evaluation_images(torch.arange(16)))
        tokens = models[0].head.embed(features).flatten(2).transpose(1, 2).flatten(0, 1)
    # Up to their length, which the layer clips, prototypes are features of some image.
    chosen = torch.nn.functional.normalize(layers[0].prototypes.detach(), dim=1)
    nearest = (chosen @ torch.nn.functional.normalize(tokens, dim=1).t()).max(1).values
    torch.testing.assert_close(nearest, torch.ones_like(nearest), atol=1e-4, rtol=0)


def test_weights_are_checked_before_data(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "mu", "--root", "nowhere", "--backbone", "resnet20", "--weights", "w.safetensors"]
    assert cli.main(words) == 1
    assert "there is no file w.safetensors" in capsys.readouterr().err
    save_file({"head": torch.zeros(1)}, "w.safetensors")
    assert cli.main(words) == 2
    assert "w.safetensors" in capsys.readouterr().err
    save_file(create_backbone("resnet20").state_dict(), "other.safetensors")
    assert cli.main([*words[:-1], "other.safetensors"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_every_experiment_names_its_trainings_that_are_missing(project: Path) -> None:
    for module in (benchmark, components, mu, screening):
        experiment = module.EXPERIMENT
        record = read_result(project / "results" / f"{experiment.files[0]}.json")
        nothing = {"value": {**record["value"], "runs": []}}
        assert "trainings" in experiment.missing(nothing)
    one = {"value": {**record["value"], "runs": record["value"]["runs"][1:]}}
    assert screening.EXPERIMENT.missing(one).startswith("1 of 54")
