"""TFM against the encoder's formula, written out in loops, and what its positions do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gspool.pooling.tfm import TFM, sinusoidal_positions
from oracle import EXACT


def numbers(tensor):
    return tensor.detach().numpy()


def normed(vector, norm):
    centred = vector - vector.mean()
    return centred / np.sqrt((centred**2).mean() + norm.eps) * numbers(norm.weight) + numbers(norm.bias)


def attended(sequence, attention):
    dim, heads = attention.embed_dim, attention.num_heads
    stacked, bias = numbers(attention.in_proj_weight), numbers(attention.in_proj_bias)
    query, key, value = (
        [stacked[part : part + dim] @ vector + bias[part : part + dim] for vector in sequence]
        for part in (0, dim, 2 * dim)
    )
    out = []
    for q in query:
        gathered = np.zeros(dim)
        for head in range(heads):
            part = slice(head * dim // heads, (head + 1) * dim // heads)
            scores = np.array([np.exp(q[part] @ k[part] / np.sqrt(dim / heads)) for k in key])
            gathered[part] = sum(s * v[part] for s, v in zip(scores / scores.sum(), value, strict=True))
        out.append(numbers(attention.out_proj.weight) @ gathered + numbers(attention.out_proj.bias))
    return out


def tfm_in_loops(tokens, model):
    sequence = [numbers(model.class_token)[0, 0], *tokens]
    for layer in model.encoder:
        found = attended([normed(vector, layer.norm1) for vector in sequence], layer.self_attn)
        sequence = [vector + extra for vector, extra in zip(sequence, found, strict=True)]
        for index, vector in enumerate(sequence):
            hidden = numbers(layer.linear1.weight) @ normed(vector, layer.norm2) + numbers(layer.linear1.bias)
            hidden = np.array([0.5 * h * (1 + math.erf(h / math.sqrt(2))) for h in hidden])
            sequence[index] = vector + numbers(layer.linear2.weight) @ hidden + numbers(layer.linear2.bias)
    return normed(sequence[0], model.norm)


def randomised(*arguments, **options):
    torch.manual_seed(0)
    model = TFM(*arguments, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (1, 3), (2, 2)])
def test_formula(count, layers, heads):
    model = randomised(6, layers=layers, heads=heads, mlp_ratio=2.0)
    x = torch.randn(2, count, 6, dtype=torch.float64)
    expected = np.stack([tfm_in_loops(image.numpy(), model) for image in x])
    torch.testing.assert_close(model(x), torch.tensor(expected), **EXACT)


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


def test_sinusoidal_positions_in_loops():
    height, width, dim = 3, 4, 8
    ours = sinusoidal_positions(height, width, dim, torch.empty(0, dtype=torch.float64))
    quarter = dim // 4
    for row in range(height):
        for column in range(width):
            expected = []
            for coordinate in (row, column):
                angles = [coordinate * 10_000.0 ** (-k / (quarter - 1)) for k in range(quarter)]
                expected += [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
            got = ours[row * width + column]
            torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_sinusoidal_positions_tell_places_apart():
    codes = sinusoidal_positions(14, 9, 4, torch.empty(0))
    distances = torch.cdist(codes, codes) + 10 * torch.eye(len(codes))
    assert distances.min() > 0.05


def test_with_positions_the_order_of_tokens_matters():
    torch.manual_seed(0)
    model = TFM(8, position="sinusoidal").eval()
    x = torch.randn(1, 8, 3, 4)
    assert not torch.allclose(model(x), model(x.flip(3)), atol=1e-4)


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
