"""The class token, positions and depth of TFM."""

from __future__ import annotations

import pytest
import torch

from gspool.pooling.tfm import TFM, sinusoidal_positions
from oracle import EXACT


def randomised(*arguments, **options):
    torch.manual_seed(0)
    model = TFM(*arguments, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("masked", [False, True])
def test_the_path_for_inference_gives_the_same(masked):
    """In evaluation, without gradients, PyTorch fuses the encoder layer into one operator."""
    model = randomised(8, layers=2).eval()
    x = torch.randn(3, 8, 3, 4, dtype=torch.float64)
    mask = None
    if masked:
        mask = torch.ones(3, 3, 4, dtype=torch.bool)
        mask[1, 1:] = False
    expected = model(x, mask)
    with torch.no_grad():
        torch.testing.assert_close(model(x, mask), expected, **EXACT)


def test_the_class_token_is_never_masked_out():
    model = randomised(8).eval()
    x, mask = torch.randn(1, 5, 8, dtype=torch.float64), torch.tensor([[False, False, True, False, False]])
    torch.testing.assert_close(model(x, mask), model(x[:, 2:3]), **EXACT)


def test_sinusoidal_positions_tell_places_apart():
    codes = sinusoidal_positions(14, 9, 4, torch.empty(0))
    distances = torch.cdist(codes, codes) + 10 * torch.eye(len(codes))
    assert distances.min() > 0.05


@pytest.mark.parametrize("layers", [1, 2, 4, 8])
def test_paper_depths(layers):
    model = TFM(8, layers=layers)
    assert len(model.encoder) == layers
    assert model(torch.randn(2, 8, 3, 3)).shape == (2, 8)
    assert model.embedding == "before"
    # Each layer starts from weights of its own, not from copies of the first.
    assert len({layer.linear1.weight.sum().item() for layer in model.encoder}) == layers


@pytest.mark.parametrize(("dim", "heads"), [(128, 8), (12, 4), (7, 1), (6, 2)])
def test_heads_share_any_number_of_channels(dim, heads):
    assert TFM(dim).encoder[0].self_attn.num_heads == heads


def test_dropout_is_for_training_only():
    torch.manual_seed(0)
    model = TFM(8, dropout=0.5)
    x = torch.randn(2, 8, 3, 3)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
