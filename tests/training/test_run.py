"""A model and its baseline, the report, evaluation of what was saved, and a user's own pictures."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shlex
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from gspool import Embedder, cli
from gspool.data import ArrayImages, ImageSet
from gspool.evaluation import retrieval_metrics
from gspool.evaluation.entropy import relative_entropy
from gspool.models import Pixels
from gspool.training import (
    DataConfig,
    TrainConfig,
    embed_images,
    evaluate_images,
    evaluate_run,
    parse_config,
    report_figures,
    train,
)
from gspool.training.metric_learning import MetricLearning
from gspool.training.run import variants_of
from gspool.training.run_folder import new_run_folder, only_training
from gspool.training.sets import image_set
from training.tiny_run import draw_pictures, some_of, tiny


def on_pictures(folder: Path, **data) -> TrainConfig:
    """Return a run on six classes of four pictures of several sizes."""
    root = draw_pictures(folder / "pictures", classes=6, images=4, side=20, ragged=True)
    config = tiny(max_steps=2, evaluate_every=2)
    options = {"fractions": [0.34, 0.33, 0.33]}
    config.data = DataConfig("folder", str(root), options, 2, 2, transform="crop", **data)
    config.model.backbone_options["pixels"] = {"size": 16, "resize": 20}
    config.output.folder = str(folder / "run")
    return config


def test_the_baseline_differs_in_its_pooling_alone(tmp_path):
    config = tiny()
    config.baseline, config.loss.zsr = "gap", 0.1
    model, baseline = variants_of(config, tmp_path)
    assert (model.name, baseline.name) == ("gsp", "gap")
    assert (baseline.config.model.pooling, baseline.config.model.pooling_options) == ("gap", {})
    assert baseline.config.loss.zsr == 0.0
    assert config.model.pooling == "gsp"
    for section in ("optimiser", "trainer", "data"):
        assert getattr(baseline.config, section) == getattr(config, section)


def test_the_baseline_on_a_frozen_backbone_has_the_settings_chosen_for_it(tmp_path):
    words = ["--preset", "folder", "--model.pooling", "gsp", "--baseline", "ep"]
    baseline = variants_of(parse_config(words)[0], tmp_path)[1].config
    assert (baseline.model.pooling_options, baseline.head.rate) == ({"queries": 32}, 100.0)
    baseline = variants_of(parse_config([*words, "--head.rate", "7"])[0], tmp_path)[1].config
    assert baseline.head.rate == 7  # of the user, for both
    model, baseline = variants_of(parse_config(["--preset", "folder", "--baseline", "delf"])[0], tmp_path)
    assert (model.config.optimiser.lr, baseline.config.optimiser.lr) == (3e-4, 9e-4)


def test_a_run_with_a_baseline_writes_one_page_that_needs_no_other(tmp_path):
    config = tiny()
    config.baseline, config.output.report, config.output.folder = "gap", True, str(tmp_path / "run")
    result = train(config)
    page = result.report.read_text()
    assert result.baseline is not None
    assert {"config.yaml", "last.pt", "model", "result.json"} <= {
        path.name for path in result.baseline.folder.iterdir()
    }
    # Confused classes, curves, and for both models neighbours and weights.
    assert page.count("data:image/png;base64,") == 6
    low, high = result.model.intervals["map@r"]
    assert low < result.model.metrics["map@r"] < high
    assert f"{100 * low:.1f} – {100 * high:.1f}" in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    for metrics in (result.model.metrics, result.baseline.metrics):
        assert f"{100 * metrics['map@r']:.2f}" in page
    before = page
    assert train(config, resume=tmp_path / "run").report.read_text() == before


def test_parts_of_the_loss_are_drawn_apart_once_zero_shot_regularisation_begins():
    def width(rows) -> int:
        page = report_figures.curves({"gsp": rows})
        return Image.open(io.BytesIO(base64.b64decode(page.partition("base64,")[2].partition('"')[0]))).width

    metric = [{"step": step, "loss_metric": 1.0, "map@r": 0.5} for step in (1, 2)]
    both = [*metric, {"step": 3, "loss_metric": 1.0, "loss_zero_shot": 4.0}]
    assert width(both) == pytest.approx(1.5 * width(metric), abs=2)


def test_the_curve_of_a_classifier_is_its_accuracy():
    rows = [{"step": 1, "loss_metric": 1.0}, {"step": 2, "accuracy": 0.5}]
    assert 'alt="training loss, accuracy while training over steps"' in report_figures.curves({"gsp": rows})


@pytest.mark.parametrize("gallery", [1, 2])
def test_a_small_gallery_is_shown_whole(gallery):
    pixels = torch.randint(256, (2 + gallery, 3, 16, 16), dtype=torch.uint8)
    roles = ["query"] * 2 + ["gallery"] * gallery
    images = ImageSet(ArrayImages(pixels), [0, 1, *range(gallery)], ("a", "b"), name="toy", roles=roles)
    examples = report_figures.choose_examples(Embedder("small_cnn", "gap", 8), images, torch.rand(2 + gallery, 8))
    assert examples.neighbours.shape[:2] == (2, gallery)
    assert examples.right.sum() == gallery


def test_a_classifier_needs_no_second_picture_of_a_class_to_be_tested(tmp_path, monkeypatch):
    config = on_pictures(tmp_path)
    config.data.options, config.output.report = {"zero_shot": False}, True
    config.model.pooling, config.model.pooling_options, config.model.dim = "gap", {}, None
    loss = MetricLearning.loss
    monkeypatch.setattr(MetricLearning, "loss", lambda *_: pytest.fail("a step was made"))
    with pytest.raises(ValueError, match="test has no class of two images"):
        train(config)
    monkeypatch.setattr(MetricLearning, "loss", loss)
    config.loss.name, config.trainer.monitor = "cross_entropy", "accuracy"
    result = train(config)
    assert (set(result.model.metrics), result.model.classes, result.model.queries) == ({"accuracy"}, 6, 0)
    assert "accuracy while training" in result.report.read_text()
    again = evaluate_run(tmp_path / "run")
    assert (again.figures(), again.warning) == (result.model.metrics, None)


def test_evaluation_of_other_data_and_of_a_bare_model(tmp_path):
    config = tiny()
    config.output.folder = str(tmp_path / "run")
    result = train(config)
    own = evaluate_run(tmp_path / "run", device="cpu")
    assert dict(own.metrics) == pytest.approx(result.model.metrics)
    other = DataConfig(options={"images_per_class": 3, "size": 16, "seed": 4})
    elsewhere = evaluate_run(tmp_path / "run", "validation", other, ks=(1, 5), device="cpu")
    assert elsewhere.metrics.queries == 3 * 154
    assert "r@5" in elsewhere.metrics
    bare = evaluate_run(tmp_path / "run" / "model", "validation", other, ks=(1, 5), device="cpu")
    assert dict(bare.metrics) == dict(elsewhere.metrics)
    with pytest.raises(ValueError, match=r"has no data of its own; give --data.name"):
        evaluate_run(tmp_path / "run" / "model")


def test_evaluation_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        evaluate_run(tmp_path / "absent")
    config = tiny()
    config.output.folder = str(tmp_path / "run")
    with only_training(tmp_path / "run", config):
        pass
    with pytest.raises(ValueError, match=r"has not finished.*--resume"):
        evaluate_run(tmp_path / "run")


def test_a_folder_of_pictures_trains(tmp_path):
    assert set(train(on_pictures(tmp_path)).model.metrics) >= {"map@r", "p@1"}


def test_pictures_of_several_sizes_are_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(MetricLearning, "loss", lambda *_: pytest.fail("a step was made"))
    config = on_pictures(tmp_path)
    config.data.transform = "none"
    with pytest.raises(ValueError, match=r"one size, and train has .*'crop'"):
        train(config)


def test_a_broken_picture_is_named_or_left_out(tmp_path):
    data, pixels = on_pictures(tmp_path).data, Pixels(size=16, resize=20)
    victim = image_set(data, "train", pixels).describe(0)
    Path(victim).write_bytes(b"not a picture")
    with pytest.raises(ValueError, match="1 of 8 images cannot be read") as problem:
        image_set(data, "train", pixels)
    assert victim in str(problem.value)
    data.check = "skip"
    with pytest.warns(UserWarning, match=r"pictures/train goes on without .*1 of 8 images cannot be read") as told:
        assert len(image_set(data, "train", pixels)) == 7
    assert victim in str(told[0].message)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_broken_picture_of_any_split_is_found_before_training(tmp_path, split, monkeypatch):
    config = on_pictures(tmp_path)
    victim = image_set(config.data, split, Pixels(size=16, resize=20)).describe(0)
    Path(victim).write_bytes(Path(victim).read_bytes()[:90])
    monkeypatch.setattr(MetricLearning, "loss", None)
    with pytest.raises(ValueError, match=rf"1 images cannot be read.*\n.*{re.escape(victim)}"):
        train(config)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_cache_resizes_as_the_backbone_is_evaluated(tmp_path, monkeypatch, interpolation):
    monkeypatch.setenv("GSPOOL_DATA", str(tmp_path / "data"))
    data, pixels = on_pictures(tmp_path, cache=True).data, Pixels(size=16, resize=17, interpolation=interpolation)
    kept, fresh = (image_set(each, "test", pixels) for each in (data, replace(data, cache=False)))
    for (seen, _), (expected, _) in zip(kept, fresh, strict=True):
        # Pillow and torchvision round differently, by one level; the other interpolation is dozens away.
        assert int((seen.int() - expected.int()).abs().max()) <= 1


@pytest.mark.parametrize("transform_options", [{}, {"resize": 40, "size": 32}, {"resize": None}])
def test_the_cache_resizes_as_training_is_told(tmp_path, monkeypatch, transform_options):
    monkeypatch.setenv("GSPOOL_DATA", str(tmp_path / "data"))
    data = on_pictures(tmp_path, cache=True, transform_options=transform_options).data
    pixels = Pixels(size=16, resize=17)
    for index in range(8):
        seen = []
        for each in (data, replace(data, cache=False)):
            pictures = image_set(each, "train", pixels, training=True)
            torch.manual_seed(index)
            seen.append(pictures[index][0].int())
        assert int((seen[0] - seen[1]).abs().max()) <= 2


@pytest.mark.parametrize("name", ["glyphs", "imagenet"])
@pytest.mark.parametrize("training", [True, False])
def test_images_that_no_cache_can_hold_are_resized_all_the_same(tmp_path, name, training):
    for part in ("train", "val"):
        draw_pictures(tmp_path / part, classes=2, images=1)
    options = {"glyphs": {"images_per_class": 1}, "imagenet": {"allow_partial": True}}[name]
    data, pixels = DataConfig(name, str(tmp_path), options, transform="crop", cache=True), Pixels(size=90, resize=100)
    seen = []
    for each in (data, replace(data, cache=False)):
        pictures = image_set(each, "train" if training else "test", pixels, training=training)
        torch.manual_seed(0)
        seen.append(pictures[0][0])
    assert torch.equal(*seen)


def test_all_problems_are_told_at_once_with_the_command_that_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    draw_pictures(tmp_path / "pictures", classes=12, images=4, side=20, ragged=True)
    draw_pictures(tmp_path / "pictures" / "lone", classes=1, images=1)
    for label in (1, 7):
        (tmp_path / "pictures" / f"class0{label}" / "0.png").write_bytes(b"not a picture")
    words = [
        *("train", "--data.name", "folder", "--data.root", "pictures", "--data.classes_per_batch", "50"),
        *("--data.transform", "crop", "--baseline", "null", "--trainer.max_steps", "4", "--trainer.evaluate_every=4"),
        *("--model.backbone_options", '{"width": 2, "pixels": {"size": 16, "resize": 20}}'),
    ]
    assert cli.main([*words, "--trainer.monitor", "accuracy"]) == 2
    told = capsys.readouterr().err
    for problem in ("trainer.monitor", "a single image (lone)", "class01/0.png", "class07/0.png"):
        assert problem in told
    assert told.rstrip().endswith("--data.options.small_classes drop --data.check skip")
    command = shlex.split(told.rstrip().splitlines()[-1].partition(": gspool ")[2])
    command[command.index("accuracy")] = "map@r"
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        assert cli.main([*command, "--output.folder", "run"]) == 0
    noted = " ".join(str(each.message) for each in notes)
    for fact in ("2 images cannot be read", "are left out (lone)", "in several classes"):
        assert fact in noted
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search("train 2[678] of 7 classes", printed)
    assert "1 classes with fewer than two pictures: lone" in printed
    assert "batches of 50 classes x 1 images shrink to 7 x 1" in printed
    assert "a step takes" in printed
    assert "only 2 classes were tested" in printed
    threshold = json.loads((tmp_path / "run" / "threshold.json").read_text())
    assert threshold == json.loads((tmp_path / "run" / "model" / "threshold.json").read_text())
    assert threshold["split"] == "validation"
    rows = list(csv.DictReader((tmp_path / "run" / "classes.csv").read_text().splitlines()))
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("classes", "message"), [(1, "has 1 class"), (2, "at least two|needs two"), (4, "at least two are needed")]
)
def test_too_few_classes_are_told_before_training(tmp_path, classes, message):
    config = on_pictures(tmp_path)
    config.data = DataConfig("folder", str(some_of(tmp_path / "pictures", tmp_path / "few", classes, 4)))
    with pytest.raises(ValueError, match=message):
        train(config)


@pytest.mark.parametrize(
    ("name", "root", "told"),
    [
        ("folder", "absent", "absent does not exist; give a folder of class sub-folders"),
        ("folder", None, "folder needs a root.*--data.root"),
        ("cub", "absent", "cub was not found in .*absent"),
    ],
)
def test_missing_data_is_told_before_a_model_fetches_weights(tmp_path, name, root, told, monkeypatch):
    monkeypatch.setattr(
        "gspool.training.metric_learning.Embedder", lambda *_, **__: pytest.fail("the model was made first")
    )
    config = tiny()
    config.data = DataConfig(name=name, root=None if root is None else str(tmp_path / root))
    config.output.folder = str(tmp_path / "run")
    with pytest.raises((ValueError, FileNotFoundError), match=told):
        train(config)


def test_several_processes_need_a_named_folder():
    with pytest.raises(ValueError, match=r"give --output\.folder"):
        new_run_folder(tiny(devices=2))


def test_queries_are_searched_in_the_gallery():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (12, 3, 16, 16), dtype=torch.uint8, generator=generator)
    labels = torch.arange(12) % 3
    roles = ["query"] * 6 + ["gallery"] * 6
    images = ImageSet(ArrayImages(pixels), labels, ("a", "b", "c"), name="toy", roles=roles)
    model = Embedder("small_cnn", dim=8, backbone_options={"width": 2}).train()
    evaluation = evaluate_images(model, images, ks=(1,), batch_size=5)
    assert model.training
    vectors = embed_images(model, images).embeddings
    expected = retrieval_metrics(vectors[:6], labels[:6], vectors[6:], labels[6:], ks=(1,))
    assert dict(evaluation.metrics) == pytest.approx(dict(expected))


def test_entropy_is_one_for_equal_weights_and_zero_for_one_token():
    weights = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25] * 4, [1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(relative_entropy(weights), torch.tensor([0.5, 1.0, 0.0]))
    torch.testing.assert_close(relative_entropy(torch.ones(2, 1)), torch.ones(2))
