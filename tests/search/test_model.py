"""Models are found by run folder, saved folder or hub name, and told apart by their fingerprint."""

from __future__ import annotations

import shutil

import pytest
import torch

from gspool import Embedder
from gspool.search import fingerprint, load_model
from gspool.search.model import embed_batch


def test_a_saved_folder_and_the_folder_of_a_run_give_the_same_model(small_model, model_folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(model_folder, run / "model")
    (run / "config.yaml").write_text("model: {}\n")
    for source in (model_folder, str(model_folder), run):
        loaded = load_model(source, device="cpu")
        assert not loaded.training
        assert fingerprint(loaded) == fingerprint(small_model)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("missing", "missing"),
        ("a/b/missing", "missing"),
        ("/missing/model", "missing"),
        ("runs/leters", r"there is no model .*leters; .*runs holds birds, letters"),
        ("notes", r"notes\.txt"),
    ],
)
def test_a_model_that_is_not_there_is_answered_with_what_is(source, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/letters", "runs/birds", "notes"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "notes" / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=named):
        load_model(source)


def test_the_fingerprint_follows_weights_pixels_and_settings_and_nothing_else(small_model, model_folder):
    same = Embedder.from_pretrained(model_folder)
    assert fingerprint(same) == fingerprint(small_model)
    assert fingerprint(same.freeze("all")) == fingerprint(small_model)
    assert fingerprint(same.train()) == fingerprint(small_model)
    with torch.no_grad():
        next(same.parameters()).view(-1)[0] += 1e-3
    assert fingerprint(same) != fingerprint(small_model)
    options = dict(small_model.settings.pooling_options)
    sharper = Embedder("small_cnn", "gsp", 16, pooling_options={**options, "epsilon": 9.0})
    sharper.load_state_dict(small_model.state_dict())
    assert fingerprint(sharper) != fingerprint(small_model)
    brighter = Embedder("small_cnn", "gsp", 16, pooling_options=options, backbone_options={"pixels": {"size": 32}})
    brighter.load_state_dict(small_model.state_dict())
    assert fingerprint(brighter) != fingerprint(small_model)


def test_a_batch_is_embedded_as_the_model_does_it(small_model):
    images = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        expected = small_model(images)
    torch.testing.assert_close(embed_batch(small_model, images).embedding, expected)
    small_model.train()
    try:
        torch.testing.assert_close(embed_batch(small_model, images).embedding, expected)
        assert small_model.training
    finally:
        small_model.eval()


def test_half_precision_gives_unit_vectors_in_float32_near_the_full_ones(small_model):
    images = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8)
    full, half = (embed_batch(small_model, images, kind).embedding for kind in ("float32", "bfloat16"))
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.norm(dim=1), torch.ones(3))
    assert 0 < (full - half).abs().max() < 0.05
    with pytest.raises(ValueError, match="precision is one of"):
        embed_batch(small_model, images, "float8")
