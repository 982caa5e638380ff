from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Module, Normalize, Pooling

from gspool.functional import distance, partial_transport
from gspool.models.sentence_pooling import GSPPooling

DIM = 6
WORDS = ["where", "is", "my", "parcel", "the", "lamp", "arrived", "in", "pieces", "thank", "you"]


class WordVectors(Module):
    """A transformer's stand-in: every word has its vector, and shorter sentences are padded with noise."""

    def __init__(self, left_padding: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left_padding = left_padding
        self.table = torch.nn.Embedding(len(WORDS), DIM)

    def preprocess(self, inputs: list[str], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        sentences = [[WORDS.index(word) for word in f"{prompt or ''} {text}".split()] for text in inputs]
        longest = max(map(len, sentences))
        ids, mask = torch.zeros(2, len(sentences), longest, dtype=torch.long)
        for row, words in enumerate(sentences):
            place = slice(longest - len(words), None) if self.left_padding else slice(len(words))
            ids[row, place], mask[row, place] = torch.tensor(words), 1
        features = {"input_ids": ids, "attention_mask": mask}
        return features if prompt is None else {**features, "prompt_length": len(prompt.split())}

    tokenize = preprocess

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        tokens = self.table(features["input_ids"])
        noise = torch.full_like(tokens, 1e4)
        real = features["attention_mask"][..., None].bool()
        return {**features, "token_embeddings": torch.where(real, tokens, noise)}

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        self.save_config(output_path)
        self.save_torch_weights(output_path)


def encoder(pooling: Module, **options: Any) -> SentenceTransformer:
    return SentenceTransformer(modules=[WordVectors(**options), pooling, Normalize()], device="cpu")


SENTENCES = ["where is my parcel", "the lamp", "thank you the parcel arrived in pieces"]


def embed(pooling: Module, sentences: list[str] = SENTENCES, **options: Any) -> dict[str, Any]:
    words = WordVectors(**options)
    return pooling(words(words.preprocess(sentences)))


@pytest.mark.parametrize("left_padding", [False, True])
def test_a_sentence_is_pooled_as_if_it_came_alone(left_padding: bool) -> None:
    pooling = GSPPooling(DIM, prototypes=3, mu=0.4, epsilon=8.0).eval()
    together = embed(pooling, left_padding=left_padding)
    words = WordVectors()
    for row, sentence in enumerate(SENTENCES):
        tokens = words.table(torch.tensor([WORDS.index(word) for word in sentence.split()]))[None]
        # The readable way: distances by subtraction, the transport, a weighted sum.
        plan = partial_transport(distance(pooling.gsp.prototypes, tokens), 0.4, 8.0).plan
        weights = plan.sum(1) / 0.4
        torch.testing.assert_close(together["sentence_embedding"][row], (weights @ tokens)[0, 0])
        real = together["attention_mask"][row].bool()
        torch.testing.assert_close(together["token_weights"][row, real], weights[0])
        assert together["token_weights"][row, ~real].eq(0).all()
        torch.testing.assert_close(together["attributes"][row], plan.sum(2)[0] / 0.4)


def test_mu_one_is_mean_pooling() -> None:
    ours = embed(GSPPooling(DIM, mu=1.0))["sentence_embedding"]
    torch.testing.assert_close(ours, embed(Pooling(DIM, "mean"))["sentence_embedding"])


@pytest.mark.parametrize("left_padding", [False, True])
def test_a_prompt_may_be_left_out(left_padding: bool) -> None:
    pooling = GSPPooling(DIM, prototypes=3, include_prompt=False).eval()
    words = WordVectors(left_padding)
    alone = pooling(words(words.preprocess(SENTENCES)))["sentence_embedding"]
    for length in (2, torch.tensor([2, 2, 2])):
        prompted = words(words.preprocess(SENTENCES, prompt="thank you"))
        prompted["prompt_length"] = length
        torch.testing.assert_close(pooling(prompted)["sentence_embedding"], alone)
    with_prompt = GSPPooling(DIM, prototypes=3).eval()
    with_prompt.load_state_dict(pooling.state_dict())
    assert not torch.allclose(with_prompt(prompted)["sentence_embedding"], alone)


def test_special_tokens_take_no_part() -> None:
    special = [WORDS.index("the"), WORDS.index("you")]
    pooling = GSPPooling(DIM, prototypes=3, special_tokens=special).eval()
    marked = embed(pooling, ["the lamp arrived you", "the parcel you", "the you"])
    plain = embed(pooling, ["lamp arrived", "parcel", "the you"])
    torch.testing.assert_close(marked["sentence_embedding"], plain["sentence_embedding"])
    assert marked["token_weights"][0, [0, 3]].eq(0).all()
    assert marked["token_weights"][2, :2].gt(0).all()  # a sentence of nothing else keeps them
    with pytest.raises(ValueError, match="input_ids"):
        pooling({"token_embeddings": torch.zeros(1, 2, DIM)})
    model = encoder(GSPPooling(DIM, prototypes=2, special_tokens=special))
    model[1].init_prototypes(model, ["the lamp arrived you", "lamp"])
    table = model[0].table.weight[[WORDS.index("lamp"), WORDS.index("arrived")]]
    clipped = table / table.norm(dim=1, keepdim=True).clamp_min(1)
    assert torch.cdist(model[1].gsp.prototypes, clipped).amin(1).max() < 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {"prototypes": 3, "mu": 0.4, "epsilon": 7.0},
        {"prototypes": 2, "warm_start": 5, "learn_mu": True, "learn_epsilon": True},
        {"prototypes": 2, "include_prompt": False, "special_tokens": [3]},
    ],
)
def test_a_saved_module_comes_back_as_it_was(options: dict[str, Any], tmp_path: Path) -> None:
    pooling = GSPPooling(DIM, **options)
    pooling.train()
    embed(pooling)  # a warm start has seen three of its sentences
    pooling.eval().save(str(tmp_path))
    again = GSPPooling.load(str(tmp_path)).eval()
    assert again.get_config_dict() == pooling.get_config_dict()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    for name, value in pooling.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    assert torch.equal(embed(again)["sentence_embedding"], embed(pooling)["sentence_embedding"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prototypes": 10**9}, "of another shape"),
        ({"embedding_dimension": 10**12}, "of another shape|describes no GSPPooling"),
        ({"prototypes": "3"}, "positive integer"),
        ({"mu": None}, "mu|describes no GSPPooling"),
        ({"special_tokens": ["word"]}, "ids of tokens"),
        ({"cache_folder": "/tmp"}, "unknown keys"),
        ({"weights_sha256": "0" * 64}, "is damaged"),
    ],
)
def test_a_config_of_another_kind_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    GSPPooling(DIM, prototypes=3).save(str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ValueError, match=words):
        GSPPooling.load(str(tmp_path))


def test_pickled_weights_are_not_loaded_and_models_without_checksum_are(tmp_path: Path) -> None:
    pooling = GSPPooling(DIM, prototypes=3)
    pooling.save(str(tmp_path))
    pooling.save_config(str(tmp_path))
    assert torch.equal(GSPPooling.load(str(tmp_path)).gsp.prototypes, pooling.gsp.prototypes)
    torch.save(pooling.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="pickled weights are never loaded"):
        GSPPooling.load(str(tmp_path))


def test_a_whole_model_is_saved_and_loaded(tmp_path: Path) -> None:
    model = encoder(GSPPooling(DIM, prototypes=3, mu=0.4))
    assert model.get_embedding_dimension() == DIM
    vectors = model.encode(SENTENCES, show_progress_bar=False)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-6)
    model.save_pretrained(str(tmp_path), create_model_card=False)
    assert '"gspool.models.sentence_pooling.GSPPooling"' in (tmp_path / "modules.json").read_text()
    pooling = GSPPooling.load(str(tmp_path), subfolder="1_GSPPooling")
    assert torch.equal(pooling.gsp.prototypes, model[1].gsp.prototypes)


def test_a_warm_start_sets_the_prototypes_after_enough_sentences() -> None:
    pooling = GSPPooling(DIM, prototypes=2, mu=0.5, warm_start=6).train()
    before = pooling.gsp.prototypes.detach().clone()
    first = embed(pooling)
    torch.testing.assert_close(first["sentence_embedding"], embed(Pooling(DIM, "mean"))["sentence_embedding"])
    assert torch.equal(pooling.gsp.prototypes, before)
    embed(pooling)
    assert not torch.equal(pooling.gsp.prototypes, before)


def test_prototypes_are_tokens_of_the_sentences_they_are_started_from() -> None:
    model = encoder(GSPPooling(DIM, prototypes=4))
    parameter = model[1].gsp.prototypes
    model[1].init_prototypes(model, SENTENCES, batch_size=2)
    assert model[1].gsp.prototypes is parameter
    table = model[0].table.weight
    clipped = table / table.norm(dim=1, keepdim=True).clamp_min(1)
    assert torch.cdist(parameter, clipped).amin(1).max() < 1e-6
    with pytest.raises(ValueError, match="4"):
        model[1].init_prototypes(model, ["thank you"])


def test_all_of_it_learns() -> None:
    pooling = GSPPooling(DIM, prototypes=3, learn_mu=True, learn_epsilon=True).train()
    embed(pooling)["sentence_embedding"].square().sum().backward()
    for parameter in pooling.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


def test_what_cannot_be_pooled_is_refused_in_words() -> None:
    pooling = GSPPooling(DIM)
    with pytest.raises(ValueError, match="no token_embeddings to pool among input_ids"):
        pooling({"input_ids": torch.zeros(1, 2)})
    with pytest.raises(ValueError, match="without padding"):
        pooling({"token_embeddings": torch.zeros(1, 2, DIM), "cu_seq_lens_q": torch.tensor([0, 2])})
    with pytest.raises(ValueError, match="without a single real token"):
        pooling({"token_embeddings": torch.zeros(1, 2, DIM), "attention_mask": torch.zeros(1, 2)})
    with pytest.raises(ValueError, match=r"must lie in \(0, 1\]"):
        GSPPooling(DIM, mu=1.5)
