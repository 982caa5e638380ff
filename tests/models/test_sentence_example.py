"""The example on the transformer that is shipped as a package: its functions, and a round trip of the whole model."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from gspool.models.sentence_pooling import GSPPooling

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))
    try:
        import sentence_transformers_gsp
    finally:
        sys.path.remove(str(EXAMPLES))
    return sentence_transformers_gsp


def test_a_shipped_model_keeps_its_vectors_at_mu_one_and_comes_back_from_disk(
    example: ModuleType, tmp_path: Path
) -> None:
    sentences = ["Where is my parcel?", "Hello! The lamp arrived in pieces. Kind regards, Maria."]
    model = example.model_with(GSPPooling(384, mu=1.0, prototypes=4))
    expected = example.model_with(Pooling(384, "mean")).encode(sentences, show_progress_bar=False)
    vectors = model.encode(sentences, show_progress_bar=False)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    model[1] = GSPPooling.for_transformer(model[0], mu=0.3, epsilon=20.0, prototypes=4)
    assert model[1].special_tokens == [model.tokenizer.cls_token_id, model.tokenizer.sep_token_id]
    model[1].init_prototypes(model, sentences)
    vectors = model.encode(sentences, show_progress_bar=False)
    assert abs(vectors - expected).max() > 1e-3
    model.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    assert isinstance(again[1], GSPPooling)
    np.testing.assert_array_equal(again.encode(sentences, show_progress_bar=False), vectors)


def test_the_example_trains_scores_and_shows_weights(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    data = example.messages(["refund", "invoice", "warranty"], random.Random(0), copies=1)
    assert len(data.sentences) == len(data.labels) == 18
    model = example.model_with(GSPPooling(384, mu=0.3, epsilon=20.0, prototypes=4))
    model[1].init_prototypes(model, data.sentences)
    before = model[1].gsp.prototypes.detach().clone()
    untrained = example.score(model, data)
    example.train(model, data, steps=4, seed=0)
    assert not torch.equal(model[1].gsp.prototypes, before)
    assert not model.training
    # On what it was trained on, the order must improve; the page tells how it does elsewhere.
    assert example.score(model, data) > untrained
    example.show_weights(model, example.SHOWN)
    shown = [word.rpartition(":") for word in capsys.readouterr().out.split()]
    assert "declined" in [word for word, _, _ in shown]
    assert sum(float(weight) for _, _, weight in shown) == pytest.approx(len(shown), abs=0.06 * len(shown))
