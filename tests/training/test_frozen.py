"""Runs on a frozen backbone: tokens once, a head that never ends worse than it started, and the network after it."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from gspool import Embedder
from gspool.training import DataConfig, TrainConfig, evaluate_run, fit, parse_config, read_config, train
from gspool.training.checkpoint import BEST, read_checkpoint
from gspool.training.frozen import earlier_figures, token_data, token_head, trains_on_tokens
from gspool.training.heads import TokenHead
from gspool.training.metric_learning import PATCH_WEIGHTS, MetricLearning, build_loss, build_model, with_smaller_batches
from gspool.training.parsing import as_yaml
from gspool.training.presets import changed, preset
from gspool.training.processes import TrainingInterruptedError
from gspool.training.sets import image_set
from gspool.training.stream import Batch
from training.interrupted_runs import numbers_of
from training.tiny_run import draw_pictures, interrupt_at, script_evaluations, some_of, tiny

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return draw_pictures(tmp_path_factory.mktemp("pictures"), classes=10, images=6)


def frozen_run(backbone: str, pictures, folder) -> TrainConfig:
    config = tiny(max_steps=8, evaluate_every=4)
    config.data = DataConfig("folder", str(pictures), classes_per_batch=4, images_per_class=2, transform="crop")
    config.model.backbone, config.model.backbone_options = backbone, {"pixels": {"size": 32, "resize": 32}}
    if backbone == "timm/test_vit":
        config.model.backbone_options = {"img_size": 32, "pretrained": False}
    config.model.freeze, config.optimiser.lr = "all", 1e-2
    config.features.folder, config.features.precision = str(folder / "tokens"), "fp32"
    return config


@pytest.fixture(params=["timm/test_vit", "small_cnn"])
def frozen(request, pictures, tmp_path) -> TrainConfig:
    return frozen_run(request.param, pictures, tmp_path)


@pytest.fixture
def vit(pictures, tmp_path) -> TrainConfig:
    return frozen_run("timm/test_vit", pictures, tmp_path)


def test_a_step_on_tokens_is_the_step_on_images(frozen):
    frozen.model.dim = 6
    model = build_model(frozen)
    sets = {split: image_set(frozen.data, split, model.pixels) for split in ("train", "validation", "test")}
    tokens = token_data(model, sets, frozen, CPU, progress=False)
    head = token_head(model, tokens, frozen, CPU)
    loss = build_loss(frozen.loss, tokens.sets["train"].num_classes, 6, 8, seed=0)
    tasks = [MetricLearning(each, loss, frozen, tokens.sets["train"]) for each in (head, model)]
    batch = next(iter(tasks[0].batches(0, 1)))
    # The same pictures as images: every second entry is a mirror image.
    transform = image_set(frozen.data, "validation", model.pixels).transform
    seen = [(transform(sets["train"].images[row // 2]), row % 2) for row in batch.rows.tolist()]
    images = torch.stack([image.flip(-1) if mirrored else image for image, mirrored in seen])
    parts = [task.loss(each, 0) for task, each in zip(tasks, (batch, Batch(images, *batch[1:])), strict=True)]
    torch.testing.assert_close(parts[0].total, parts[1].total)
    gradients = [torch.autograd.grad(each.total, list(model.head.parameters())) for each in parts]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_the_run_is_an_ordinary_one_with_a_row_of_nothing_learned(frozen, tmp_path):
    frozen.baseline, frozen.output.report, frozen.output.folder = "gap", True, str(tmp_path / "run")
    frozen.output.embeddings = True
    result = train(frozen)
    assert list(result.rows) == ["gsp", "gsp, nothing learned", "gap", "gap, nothing learned"]
    assert "gap, nothing learned" in result.report.read_text()
    model = Embedder.from_pretrained(tmp_path / "run" / "model")
    assert model.settings.freeze == "all"
    # The saved model embeds pictures as the run has embedded tokens.
    again = evaluate_run(tmp_path / "run", device="cpu")
    assert dict(again.metrics) == pytest.approx(result.model.metrics)
    torch.testing.assert_close(again.embeddings, load_file(tmp_path / "run" / "embeddings.safetensors")["embeddings"])
    assert (tmp_path / "run" / "examples.safetensors").exists()
    before = build_model(frozen).backbone.state_dict()
    assert all(torch.equal(before[name], value) for name, value in model.backbone.state_dict().items())


def test_the_weight_of_patches_beside_the_class_token_is_saved_and_resumed(vit, tmp_path, monkeypatch):
    vit.model.pooling = "gsp+cls"
    vit.model.pooling_options = {"prototypes": 4, "join": "concat", "patch_scale": 0.123}
    vit.output.folder = str(tmp_path / "whole")
    whole = train(vit).model
    weight = Embedder.from_pretrained(tmp_path / "whole" / "model").head.weight
    assert any(torch.isclose(weight, torch.tensor(each)) for each in PATCH_WEIGHTS)
    assert dict(evaluate_run(tmp_path / "whole", device="cpu").metrics) == pytest.approx(whole.metrics)
    interrupt_at(5, monkeypatch)
    with pytest.raises(TrainingInterruptedError):
        fit(vit, tmp_path / "parts")
    monkeypatch.undo()
    fit(vit, tmp_path / "parts")
    assert numbers_of(tmp_path / "parts") == numbers_of(tmp_path / "whole")


def test_a_classifier_beside_the_class_token_needs_no_retrieval(vit, tmp_path, monkeypatch):
    vit.model.pooling, vit.model.pooling_options = "gsp+cls", {"prototypes": 4, "join": "concat", "patch_scale": 0.3}
    vit.data.options = {"zero_shot": False}
    vit.loss.name, vit.trainer.monitor = "cross_entropy", "accuracy"
    monkeypatch.setattr(MetricLearning, "evaluate_watched", lambda *_: pytest.fail("retrieval was measured"))
    assert fit(vit, tmp_path / "run").steps == 8
    assert Embedder.from_pretrained(tmp_path / "run" / "model").head.weight == pytest.approx(0.3)


def test_a_run_never_ends_worse_than_nothing_learned(vit, tmp_path, monkeypatch):
    script_evaluations(monkeypatch, 0.9, 0.5, 0.4)
    result = fit(vit, tmp_path / "run")
    assert (result.best_step, result.validation) == (0, 0.9)
    assert result.metrics == result.before["nothing learned"]


def test_an_interrupted_run_resumes_to_the_same_numbers_without_the_backbone(vit, tmp_path, monkeypatch):
    fit(vit, tmp_path / "whole")
    interrupt_at(5, monkeypatch)
    with pytest.raises(TrainingInterruptedError, match="stopped after step 6"):
        fit(vit, tmp_path / "parts")
    monkeypatch.undo()
    monkeypatch.setattr("gspool.features.extract._compute", lambda *_: pytest.fail("tokens were computed again"))
    fit(vit, tmp_path / "parts")
    assert numbers_of(tmp_path / "parts") == numbers_of(tmp_path / "whole")


def test_the_network_goes_on_from_the_head_and_both_phases_resume(vit, tmp_path, monkeypatch):
    vit.model.freeze, vit.head.steps, vit.head.lr = "batchnorm", 8, 1e-2
    vit.optimiser.lr, vit.optimiser.multipliers = 1e-4, {"head": 10.0}
    whole = fit(vit, tmp_path / "whole")
    assert list(whole.before) == ["nothing learned", "head alone"]
    assert whole.validation >= whole.curve[0]["map@r"]
    head = read_checkpoint(tmp_path / "whole" / "head" / BEST)
    assert whole.curve[0]["map@r"] == pytest.approx(
        json.loads((tmp_path / "whole" / "head" / "result.json").read_text())["validation"]
    )
    assert "loss" in head
    for model in (TokenHead, Embedder):
        interrupt_at(5, monkeypatch, model)
        with pytest.raises(TrainingInterruptedError, match=rf"--resume {tmp_path / 'parts'}$"):
            fit(vit, tmp_path / "parts")
        monkeypatch.undo()
    fit(vit, tmp_path / "parts")
    assert numbers_of(tmp_path / "parts") == numbers_of(tmp_path / "whole")
    after = Embedder.from_pretrained(tmp_path / "parts" / "model").state_dict()
    if whole.best_step:
        before = build_model(vit).state_dict()
        assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith("backbone."))


def test_finetune_goes_on_from_a_finished_run(vit, tmp_path):
    vit.output.folder = str(tmp_path / "run")
    first = train(vit).model
    config, _ = parse_config(["--finetune", str(tmp_path / "run"), "--trainer.max_steps", "2"])
    assert (config.model.freeze, config.optimiser.lr, config.optimiser.multipliers) == ("batchnorm", 1e-5, {"head": 10})
    assert (config.data, config.start_from) == (vit.data, str(tmp_path / "run"))
    config.trainer.evaluate_every = 2
    result = fit(config, tmp_path / "tuned")
    assert result.curve[0]["map@r"] == pytest.approx(first.validation)
    assert result.before["head alone"] == first.metrics
    # Figures on other test classes are no figures to compare with.
    assert earlier_figures(changed(config, data__options={"seed": 1})) == {}
    config.model.dim = 5
    with pytest.raises(ValueError, match=r"starts from .*run, whose dim is 8, and model.dim is 5"):
        fit(config, tmp_path / "other")


def test_random_crops_at_every_step_are_an_option(vit, tmp_path, capsys):
    vit.features.enabled, vit.trainer.progress = False, True
    result = fit(vit, tmp_path / "run")
    assert not (tmp_path / "tokens").exists()
    assert "runs at every step, because features.enabled is false" in capsys.readouterr().out
    assert result.before == {}


def test_pictures_of_another_size_that_are_used_as_they_are_have_no_tokens(vit, capsys):
    vit.data.transform = "none"
    model = build_model(vit)
    assert not trains_on_tokens(vit, model, image_set(vit.data, "train", model.pixels), "gsp")
    assert "--data.transform crop" in capsys.readouterr().out


def test_a_frozen_run_of_version_0_1_resumes_on_images(vit, tmp_path):
    content = as_yaml(vit)
    first, last = content.index("features:"), content.index("loss:")
    (tmp_path / "config.yaml").write_text(content[:first] + content[last:])
    assert read_config(tmp_path / "config.yaml").features.enabled is False
    (tmp_path / "config.yaml").write_text(content)
    assert read_config(tmp_path / "config.yaml") == vit


def test_batches_shrink_to_what_the_data_has(vit, capsys):
    vit.data.classes_per_batch, vit.data.images_per_class = 32, 4
    labels = torch.arange(5).repeat_interleave(3)
    shrunk = with_smaller_batches(vit, labels, shown=True)
    assert (shrunk.data.classes_per_batch, shrunk.data.images_per_class) == (5, 3)
    assert "shrink to 5 x 3" in capsys.readouterr().out
    assert with_smaller_batches(shrunk, labels) is shrunk


def test_the_preset_for_own_pictures_is_frozen_and_its_sequel_is_not():
    head, tuned = preset("folder"), preset("folder-finetune")
    assert (head.model.freeze, head.features.enabled, head.model.pooling_options["mu"]) == ("all", True, 0.003)
    assert (head.model.pooling_options["join"], head.head.rate) == ("concat", 300.0)
    assert (tuned.model.freeze, tuned.head.steps, tuned.optimiser.lr) == ("batchnorm", 400, 1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features__budget": 1e-9}, r"exceed --features.budget"),
        ({"data__options": {"fractions": [0.8, 0.1, 0.1]}}, "give 1 to test|give 1 to validation"),
        ({"model__pooling_options": {"prototypes": 4000}}, "prototypes|at least"),
    ],
)
def test_what_cannot_work_is_said_in_a_sentence(vit, tmp_path, changes, message, monkeypatch):
    monkeypatch.setattr(MetricLearning, "loss", lambda *_: pytest.fail("a step was made"))
    with pytest.raises(ValueError, match=message):
        fit(changed(vit, **changes), tmp_path / "run")


def test_a_wrong_multiplier_is_named_before_tokens_are_computed(frozen, tmp_path, monkeypatch):
    monkeypatch.setattr("gspool.training.frozen.extract_tokens", lambda *_, **__: pytest.fail("tokens were computed"))
    for name in ("prototyps", "backbone"):
        frozen.optimiser.multipliers = {name: 2.0}
        with pytest.raises(ValueError, match=f"no parameter is called '{name}'"):
            fit(frozen, tmp_path / "run")


def test_a_class_token_that_is_not_there_is_named(frozen, tmp_path):
    frozen.model.pooling = "gsp+cls"
    if frozen.model.backbone == "small_cnn":
        with pytest.raises(ValueError, match="needs the class token"):
            fit(frozen, tmp_path / "run")
    else:
        assert fit(frozen, tmp_path / "run").steps == 8


def test_two_pictures_a_class_are_enough(vit, tmp_path, pictures):
    vit.data.root, vit.data.images_per_class = str(some_of(pictures, tmp_path / "few", 10, 2)), 4
    assert fit(vit, tmp_path / "run").steps == 8
