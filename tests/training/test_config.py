"""Configurations: presets, flags, YAML, and what is refused."""

from __future__ import annotations

import pytest
import yaml

from gspool.models import hub
from gspool.training import PRESETS, TrainConfig, parse_config, read_config
from gspool.training.config import DataConfig, LossConfig, OptimiserConfig, ScheduleConfig, TrainerConfig
from gspool.training.head_settings import frozen_defaults, layer_options
from gspool.training.parsing import as_yaml, plain
from gspool.training.presets import changed, preset, with_available_backbone


def refused(arguments, capsys) -> str:
    with pytest.raises(SystemExit) as status:
        parse_config(arguments)
    assert status.value.code == 2
    return capsys.readouterr().err


def test_the_default_is_gsp_on_glyphs_with_gap_beside_it():
    config, resume = parse_config([])
    assert (config.data.name, config.model.pooling, config.baseline, resume) == ("glyphs", "gsp", "gap", None)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_yaml_and_back(name, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(as_yaml(preset(name)))
    assert plain(read_config(path)) == plain(preset(name))
    assert plain(parse_config(["--preset", name])[0]) == plain(preset(name))


def test_the_papers_values_are_in_its_presets():
    cub, sop = preset("paper/cub"), preset("paper/sop-pnca")
    assert cub.optimiser == OptimiserConfig("adam", 1e-5, 1e-4, (0.9, 0.99), 1e-7, 10.0, 100.0)
    assert (cub.data.classes_per_batch, cub.data.images_per_class) == (8, 4)
    assert cub.model.pooling_options["epsilon"] == 5.0
    assert (cub.trainer.evaluate_every, cub.trainer.patience, cub.loss.zsr) == (100, 15, 0.1)
    assert (sop.data.classes_per_batch, sop.data.images_per_class) == (32, 1)
    assert (sop.model.pooling_options["epsilon"], sop.model.pooling_options["prototypes"]) == (0.5, 128)
    assert (sop.trainer.evaluate_every, sop.trainer.patience, sop.schedule.warmup_epochs) == (1_000, 10, 1.0)
    conventional = preset("paper/cars196-conventional")
    assert (conventional.trainer.monitor, conventional.trainer.monitor_split) == ("p@1", "test")
    assert (conventional.model.dim, conventional.optimiser.lr, conventional.data.batch_size) == (512, 1e-4, 128)
    assert preset("paper/collage").model.pooling_options == {
        "prototypes": 128,
        "mu": 0.2,
        "epsilon": 10.0,
        "warm_start": 1024,
    }


def test_flags_win_over_files_and_files_over_presets(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("preset: paper/cub\ntrainer: {max_steps: 7, seed: 3}\n")
    config, _ = parse_config(["--config", str(path), "--trainer.seed", "4", "--model.pooling_options.mu", "0.2"])
    assert (config.data.name, config.trainer.max_steps, config.trainer.seed) == ("cub", 7, 4)
    assert config.model.pooling_options["mu"] == 0.2
    assert config.model.pooling_options["prototypes"] == 64


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ([], None),
        (["--from_scratch"], True),
        (["--from_scratch", "--trainer.seed", "3"], True),
        (["--from_scratch", "true"], True),
        (["--from_scratch=false"], False),
        (["--from_scratch", "null"], None),
    ],
)
def test_random_weights_are_asked_for_by_the_word_alone(arguments, meant):
    config, _ = parse_config(arguments)
    assert config.from_scratch is meant
    assert config.trainer.seed == (3 if "3" in arguments else 0)


def test_presets_do_not_share_what_can_be_changed():
    first = preset("glyphs")
    first.model.pooling_options["mu"] = 0.9
    assert preset("glyphs").model.pooling_options["mu"] == 0.25


def test_print_config_is_a_config(capsys, tmp_path):
    with pytest.raises(SystemExit) as status:
        parse_config(["--preset", "paper/cub", "--print_config"])
    assert status.value.code in (0, None)
    content = yaml.safe_load(capsys.readouterr().out)
    path = tmp_path / "printed.yaml"
    path.write_text(yaml.safe_dump(content))
    assert plain(parse_config(["--config", str(path)])[0]) == plain(preset("paper/cub"))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--modl.pooling", "gap"], "did you mean --model.pooling?"),
        (["--trainer.max_step", "3"], "did you mean --trainer.max_steps?"),
        (["--lr", "3"], "did you mean --head.lr or --optimiser.lr?"),
        (["--settings.of.data.root", "x"], "did you mean --data.root?"),
        (["--preset", "paper/cubs"], "did you mean 'paper/cub'?"),
        (["--preset", "folder", "--preset=fodler"], "one preset, got --preset folder and --preset fodler"),
        (["--trainer.max_steps", "many"], "trainer.max_steps"),
        (["--optimiser.name", "lamb"], "--optimiser.name is one of adam, adamw, radam, sgd, rmsprop, got lamb"),
        (["--model.freeze", "some"], "freeze must be one of none, batchnorm, all or all-but-N"),
        (["--preset", "folder", "--model.lora.rank", "8"], "also freezes the adapters of model.lora"),
        (["--data.name", "glyph"], "known are glyphs, folder"),
        (["--trainer.evaluate_every", "0"], "trainer.evaluate_every must be at least 1, got 0"),
        (["--loss.zsr", "2"], "must lie in [0, 1], got 2"),
    ],
)
def test_typos_and_wrong_values_are_answered_with_the_right_ones(arguments, hint, capsys):
    assert hint in refused(arguments, capsys)


@pytest.mark.parametrize(
    ("content", "hints"),
    [
        (b"trainer: {max_stps: 3}", ("max_stps", "--trainer.max_steps")),
        (b"trainer: {max_steps: [1,", ("own.yaml is not YAML",)),
        (b"\xff\xfe\x00trainer", ("own.yaml is not YAML",)),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, capsys, content, hints):
    (tmp_path / "own.yaml").write_bytes(content)
    answer = refused(["--config", str(tmp_path / "own.yaml")], capsys)
    assert all(hint in answer for hint in hints)
    with pytest.raises(ValueError, match="is not the configuration of a run"):
        read_config(tmp_path / "own.yaml")
    with pytest.raises(ValueError, match="there is no"):
        read_config(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataConfig(classes_per_batch=0), "classes_per_batch"),
        (lambda: DataConfig(workers=-1), "workers"),
        (lambda: OptimiserConfig(lr=float("nan")), "lr must be finite"),
        (lambda: OptimiserConfig(clip=-1), "clip"),
        (lambda: ScheduleConfig(factor=1.5), "factor"),
        (lambda: ScheduleConfig(ramp=1.0), "ramp"),
        (lambda: ScheduleConfig(warmup_epochs=-1), "warmup_epochs"),
        (lambda: TrainerConfig(patience=0), "patience"),
        (lambda: TrainerConfig(devices=0), "devices"),
        (lambda: TrainConfig(data=DataConfig(sampler="shuffled"), loss=LossConfig(zsr=0.1)), "data.sampler balanced"),
    ],
)
def test_values_outside_their_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_changed_copies_and_names_what_it_does_not_know():
    before = TrainConfig()
    after = changed(before, trainer__seed=9, model__pooling_options={"mu": 0.5})
    assert (after.trainer.seed, before.trainer.seed) == (9, 0)
    with pytest.raises(ValueError, match=r"no 'trainer\.sed'"):
        changed(before, trainer__sed=1)


def test_another_backbone_or_layer_replaces_the_options_of_the_presets(tmp_path):
    config, _ = parse_config(["--model.pooling", "gsp", "--model.backbone", "timm/resnet50", "--preset", "paper/cub"])
    assert config.model.pooling_options == preset("paper/cub").model.pooling_options
    config, _ = parse_config(["--model.pooling=gap", "--model.backbone", "resnet20"])
    assert (config.model.pooling_options, config.model.backbone_options) == ({}, {})
    (tmp_path / "own.yaml").write_text("model: {backbone: small_cnn, backbone_options: {width: 2}}")
    words = ["--model.backbone_options.weights", "a.safetensors", "--config", str(tmp_path / "own.yaml")]
    config, _ = parse_config([*words[2:], *words[:2], "--model.backbone", "keras/resnet50"])
    assert config.model.backbone_options == {"weights": "a.safetensors"}
    config, _ = parse_config([*words[2:], "--model.backbone", "small_cnn"])
    assert config.model.backbone_options == {"width": 2}


@pytest.mark.parametrize(
    ("backbone", "layer", "class_token"),
    [("timm/resnet18", "gsp", False), ("timm/vit_base_patch14_dinov2", "ep", True)],
)
def test_a_layer_named_for_a_frozen_backbone_has_its_settings_there(backbone, layer, class_token):
    words = ["--preset", "folder", "--model.backbone", backbone, "--model.pooling", layer]
    config, _ = parse_config(words)
    chosen = frozen_defaults(layer, class_token)
    assert config.model.backbone_options == {"pretrained": True}
    assert config.model.pooling_options == layer_options(chosen)
    assert config.head.rate == chosen.get("rate", 1.0)
    config, _ = parse_config([*words, "--head.rate", "3"])
    assert config.head.rate == 3


def test_a_preset_with_the_class_token_does_without_where_there_is_none():
    for name in ("folder", "folder-finetune"):
        config, _ = parse_config(["--preset", name, "--model.backbone", "timm/resnet18"])
        assert (config.model.pooling, config.model.pooling_options["mu"], config.head.rate) == ("gsp", 0.05, 1.0)
        config, _ = parse_config(["--preset", name, "--model.pooling", "delf", "--model.backbone", "timm/resnet18"])
        assert config.model.pooling_options == {}
        assert (config.head.lr if config.head.steps else config.optimiser.lr) == 9e-4
    assert config.optimiser.lr == 1e-5


def test_a_wrong_backbone_of_a_preset_is_refused_in_a_sentence(capsys):
    with pytest.raises(SystemExit):
        parse_config(["--preset", "folder", "--model.backbone", "timm/resnet51", "--model.pooling", "gsp"])
    assert "did you mean timm/resnet51q or timm/resnet50" in capsys.readouterr().err


@pytest.mark.parametrize(("written", "seconds"), [("30m", 1800), ("1h30m", 5400), ("45", 45), ("1.5h", 5400)])
def test_a_time_budget_is_written_in_hours_minutes_and_seconds(written, seconds):
    config, _ = parse_config(["--trainer.max_time", written])
    assert config.trainer.max_seconds == seconds
    with pytest.raises(ValueError, match="30m, 2h"):
        TrainerConfig(max_time="soon")


@pytest.mark.parametrize(
    ("cached", "pooling", "groups", "rate"), [("timm/test_vit", "gsp+cls", 32, 300.0), ("timm/resnet18", "gsp", 1, 1.0)]
)
def test_without_a_network_the_folder_preset_takes_a_cached_backbone(
    cached, pooling, groups, rate, monkeypatch, capsys
):
    monkeypatch.setattr(hub, "available_backbone", lambda wanted: cached)
    config = with_available_backbone(preset("folder"))
    model = config.model
    assert (model.backbone, model.backbone_options) == (cached, {"pretrained": True})
    assert model.pooling == pooling  # a network without a class token pools its map
    assert (model.pooling_options.get("groups", 1), config.head.rate) == (groups, rate)
    assert cached in capsys.readouterr().out
    monkeypatch.setattr(hub, "available_backbone", lambda wanted: wanted)
    assert with_available_backbone(preset("folder")) == preset("folder")
