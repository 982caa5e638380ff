"""A pooling is recognised by its numbers, on whichever axis the channels lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gspool.models.replace.observe import recognise
from gspool.models.replace.place import SamePooling, SwappedPooling

SHAPES = [(2, 6, 5, 4), (1, 6, 1, 2), (3, 7, 7, 7), (2, 5, 3), (2, 4, 4), (2, 3, 2, 3, 2)]


def numbers(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape))


def plain(features: np.ndarray, channels_last: bool, kind: str) -> np.ndarray:
    """Pool by loops."""
    images = np.moveaxis(features, -1, 1) if channels_last else features
    rows = []
    for image in images:
        average = [float(np.sum(channel)) / channel.size for channel in image]
        maximum = [max(channel.ravel().tolist()) for channel in image]
        mean_of_both = [(a + b) / 2 for a, b in zip(average, maximum, strict=True)]
        rows.append(
            {
                "average": average,
                "maximum": maximum,
                "average and maximum": mean_of_both,
                "average beside maximum": average + maximum,
            }[kind]
        )
    return np.array(rows)


@pytest.mark.parametrize("kind", ["average", "maximum", "average and maximum", "average beside maximum"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_kind_and_axis_are_recognised_and_pooled_as_plain_loops_do(
    shape: tuple[int, ...], channels_last: bool, kind: str
) -> None:
    features = numbers(shape)
    given = torch.from_numpy(plain(features.numpy(), channels_last, kind))
    assert recognise(features, given) == (kind, channels_last)
    channels = shape[-1] if channels_last else shape[1]
    pooling = SwappedPooling(SamePooling(channels, kind), channels_last=channels_last, units=(1, 2))
    torch.testing.assert_close(pooling(features), given[:, None, :, None, None])


def test_kept_dimensions_do_not_matter() -> None:
    features = numbers((2, 6, 5, 4))
    assert recognise(features, features.mean((2, 3), keepdim=True)) == ("average", False)
    assert recognise(features, features.mean((1, 2), keepdim=True)) == ("average", True)


def test_the_class_token_is_recognised() -> None:
    tokens = numbers((2, 5, 3))
    assert recognise(tokens, tokens[:, 0]) == ("class token", True)
    assert recognise(tokens, tokens[:, 1]) == ("unknown", True)


@pytest.mark.parametrize(
    ("taken", "given"),
    [
        (numbers((2, 6, 1, 1)), numbers((2, 6))),  # nothing to pool
        (numbers((2, 6, 5, 4)), numbers((2, 6, 5))),  # positions are left
        (numbers((2, 6, 5, 4)), numbers((2, 120))),  # flattened
        (numbers((2, 6, 5, 4)), numbers((1, 6))),  # another batch
        (numbers((2, 6)), numbers((2, 6))),  # a vector
        (numbers((2, 6, 5, 4)), torch.zeros(2, 6, dtype=torch.long)),  # places, not numbers
        (numbers((2, 6, 5, 4)), torch.zeros(())),  # one number for all
    ],
)
def test_what_is_no_reduction_to_one_vector_an_image(taken: torch.Tensor, given: torch.Tensor) -> None:
    assert recognise(taken, given) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rounding_is_forgiven(dtype: torch.dtype) -> None:
    features = numbers((2, 6, 9, 9)).to(dtype)
    assert recognise(features, features.double().mean((2, 3)).to(dtype)) == ("average", False)
    assert recognise(features, 1.2 * features.mean((2, 3))) == ("unknown", False)
