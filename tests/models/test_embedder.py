from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gspool import pooling
from gspool.models import Backbone, Embedder, Pixels
from gspool.models.pixels import PixelNormalisation


def some_images(count: int = 2, size: int = 32) -> torch.Tensor:
    return torch.randint(256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def small(pooling: str = "gsp", **settings: object) -> Embedder:
    torch.manual_seed(0)
    return Embedder("resnet20", pooling=pooling, dim=16, **settings).eval()  # type: ignore[arg-type]


class Patches(Backbone):
    """A backbone of a user's own: tokens, not a map."""

    def __init__(self, side: int = 8) -> None:
        super().__init__(channels=12, pixels=Pixels(size=32, resize=32))
        self.patch = nn.Conv2d(3, 12, side, side)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.patch(pixels).flatten(2).transpose(1, 2)


def test_an_embedding_is_the_pooled_features_at_length_one() -> None:
    model = small("gap")
    with torch.no_grad():
        features = model.backbone(PixelNormalisation(model.pixels)(some_images()))
        matrix = model.head.embed.weight.double().numpy()
        embedding = model(some_images())
    pooled = features.double().numpy().mean(axis=(2, 3)) @ matrix.T
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(embedding.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", pooling.list())
def test_every_pooling_layer_embeds_as_unit_vectors_and_comes_back_from_a_folder(name: str, tmp_path: Path) -> None:
    model = small(name)
    with torch.no_grad():
        out = model.embed(some_images())
    assert out.embedding.shape == (2, model.out_dim)
    torch.testing.assert_close(out.embedding.norm(dim=1), torch.ones(2))
    assert out.grid == (8, 8)
    for shares in (out.weights, out.attributes):
        if shares is not None:
            torch.testing.assert_close(shares.sum(dim=1), torch.ones(2))
    assert out.weights is None or out.weights.shape == (2, 64)
    assert out.attributes is not None or "gsp" not in name
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(Embedder.from_pretrained(tmp_path)(some_images()), out.embedding)


def test_without_normalisation_the_pixels_are_taken_as_they_are() -> None:
    model, bare = small("gap"), small("gap", normalise=False)
    pixels = PixelNormalisation(model.pixels)(some_images())
    with torch.no_grad():
        assert torch.equal(model(some_images()), bare(pixels))
    with pytest.raises(ValueError, match=r"takes normalised pixels.*transform\(normalise=True\)"):
        bare(some_images())


def test_an_embedding_is_single_precision_under_autocast_and_in_half_models() -> None:
    model = small("gap")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.feature_map(some_images()).dtype == torch.bfloat16
        embedding = model(some_images())
    assert embedding.dtype == torch.float32
    torch.testing.assert_close(embedding.norm(dim=1), torch.ones(2))
    with torch.no_grad():
        assert copy.deepcopy(model).bfloat16()(some_images()).dtype == torch.float32
        assert copy.deepcopy(model).double()(some_images()).dtype == torch.float64


def test_an_empty_direction_has_a_finite_gradient() -> None:
    model = small("gap")
    with torch.no_grad():
        model.head.embed.weight.zero_()
    embedding = model(some_images())
    assert torch.equal(embedding, torch.zeros(2, 16))
    embedding.sum().backward()
    assert model.head.embed.weight.grad.isfinite().all()


def test_all_of_it_learns() -> None:
    model = small().train()
    target = nn.functional.normalize(torch.randn(4, 16, generator=torch.Generator().manual_seed(1)), dim=1)
    optimiser = torch.optim.Adam(model.parameter_groups(lr=3e-3))
    losses = []
    for _ in range(12):
        loss = (model(some_images(4)) - target).square().sum(dim=1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert losses[-1] < 0.5 * losses[0]


def test_a_backbone_of_ones_own_may_give_tokens() -> None:
    model = Embedder(Patches(), pooling="gap", dim=4)
    out = model.embed(some_images())
    assert out.embedding.shape == (2, 4)
    assert out.grid is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"backbone": "resnet21"}, "did you mean resnet20"),
        ({"pooling": "gpa"}, "no pooling layer 'gpa'"),
        ({"dim": 0}, "length of the embedding"),
        ({"pooling": "gsp", "pooling_options": {"m": 3}}, "has no option 'm'"),
        ({"freeze": "head"}, "freeze must be one of"),
        ({"backbone": Patches(), "backbone_options": {"side": 4}}, "for a backbone given by name"),
    ],
)
def test_wrong_settings_are_refused_in_words(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Embedder(**{"backbone": "resnet20", "pooling": "gap", **arguments})


def test_the_paper_default_is_resnet50_with_gsp() -> None:
    model = Embedder()
    assert (model.backbone.channels, model.out_dim, model.settings.pooling) == (2048, 128, "gsp")


def test_it_compiles_into_one_graph() -> None:
    model = small("gap")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(some_images()), model(some_images()))
