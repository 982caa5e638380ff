"""The kernels of the stem and of gradients that meet, line by line in Python: run with TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import max_pool2d, relu

from gspool.experiments.resident import fold_frozen_norms, fork, fuse_activations, fused_stem
from gspool.experiments.resident.kernels import masked_sum, stem
from gspool.models.keras_resnet import KerasResNet50

CHANNELS_LAST = torch.channels_last
# The interpreter cuts to bfloat16 where a GPU rounds.
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-7}


def drawn(*shape: int, ties: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Draw a channels-last map; with ties, of whole numbers from -2 to 2."""
    generator = torch.Generator().manual_seed(sum(shape))
    numbers = torch.randint(-2, 3, shape, generator=generator) if ties else torch.randn(shape, generator=generator)
    return numbers.to(dtype).contiguous(memory_format=CHANNELS_LAST)


@pytest.mark.parametrize("sides", [(1, 1), (2, 7), (8, 8), (9, 9), (35, 34), (5, 140)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pixels_are_spread_as_in_the_plain_version(sides: tuple[int, int], dtype: torch.dtype) -> None:
    # Numbers that bfloat16 holds, so that rounding and cutting are the same.
    pixels = drawn(2, 3, *sides).bfloat16().float()
    for layout in (CHANNELS_LAST, torch.contiguous_format):
        plain = fused_stem.spread_pixels(pixels, dtype)
        height, width = plain.shape[2:]
        ours = stem.spread_pixels(pixels.contiguous(memory_format=layout), (height, width), fused_stem.BEFORE, dtype)
        assert ours.is_contiguous(memory_format=CHANNELS_LAST)
        assert ours.dtype == dtype
        assert torch.equal(ours, plain)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 2, 7), (2, 64, 6, 6), (1, 20, 9, 35), (3, 70, 5, 4)])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooling_has_the_values_and_the_gradient_of_relu_and_pooling(
    shape: tuple[int, int, int, int], ties: bool, dtype: torch.dtype
) -> None:
    before = drawn(*shape, ties=ties, dtype=dtype)
    exact = before.double().requires_grad_()
    plain = max_pool2d(relu(exact), 3, stride=2, padding=1)
    direction = drawn(*plain.shape, dtype=dtype)
    plain.backward(direction.double())
    pooled, places = stem.pool(relu(before))
    assert torch.equal(pooled.double(), plain)
    assert places.dtype == torch.int8
    gradient = stem.unpool(direction, places, (shape[2], shape[3]))
    assert gradient.is_contiguous(memory_format=CHANNELS_LAST)
    torch.testing.assert_close(gradient.double(), exact.grad, rtol=ROUNDING[dtype], atol=1e-6)


def test_the_place_of_a_maximum_is_its_first_in_the_window_and_of_zero_none() -> None:
    maps = torch.zeros(1, 1, 4, 4).contiguous(memory_format=CHANNELS_LAST)
    maps[0, 0, 1, 1] = maps[0, 0, 1, 2] = 3.0
    pooled, places = stem.pool(maps)
    assert pooled.flatten().tolist() == [3.0, 3.0, 3.0, 3.0]
    # Windows begin one pixel over the border, two pixels apart.
    assert places.flatten().tolist() == [8, 6, 2, 0]
    assert stem.pool(torch.zeros(1, 1, 3, 3))[1].eq(-1).all()


def test_what_is_not_a_number_shows() -> None:
    maps = torch.ones(1, 2, 6, 6).contiguous(memory_format=CHANNELS_LAST)
    maps[0, 1, 2, 2] = float("nan")
    pooled, _ = stem.pool(maps)
    assert torch.equal(pooled.isnan(), max_pool2d(maps, 3, stride=2, padding=1).isnan())
    gradient = masked_sum.flat_masked_sum(maps, maps, maps)
    assert gradient[0, 1, 2, 2].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 20, 5, 7), (1, 64, 16, 16), (2, 70, 9, 3)])
def test_gradients_meet_where_the_map_is_positive(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    first, second, maps = (drawn(*shape, dtype=dtype) + offset for offset in (0, 1, -0.125))
    plain = (first.double() + second.double()).masked_fill(maps <= 0, 0)
    ours = masked_sum.flat_masked_sum(first, second, maps)
    assert ours.stride() == maps.stride()
    torch.testing.assert_close(ours.double(), plain, rtol=ROUNDING[dtype], atol=0)


@pytest.mark.parametrize("sides", [(1, 1), (4, 5), (7, 7), (6, 40)])
@pytest.mark.parametrize("channels", [3, 64, 70])
@pytest.mark.parametrize("step", [2, 3])
def test_gradients_that_meet_are_spread_among_zeros(sides: tuple[int, int], channels: int, step: int) -> None:
    small = (2, channels, *(-(-side // step) for side in sides))
    first, second, maps = (drawn(*small) + offset for offset in (0, 1, -0.125))
    plain = torch.zeros(2, channels, *sides)
    plain[:, :, ::step, ::step] = (first + second).masked_fill(maps <= 0, 0)
    ours = masked_sum.spread_masked_sum(first, second, maps, sides, step)
    assert ours.is_contiguous(memory_format=CHANNELS_LAST)
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=0)


def test_nothing_stays_nothing() -> None:
    nothing = torch.zeros(0, 4, 6, 6).contiguous(memory_format=CHANNELS_LAST)
    pooled, places = stem.pool(nothing)
    assert stem.unpool(pooled, places, (6, 6)).shape == nothing.shape
    assert masked_sum.flat_masked_sum(nothing, nothing, nothing).shape == nothing.shape
    assert masked_sum.spread_masked_sum(nothing, nothing, nothing, (12, 11), 2).shape == (0, 4, 12, 11)


def test_a_network_learns_the_same_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = KerasResNet50().eval().to(memory_format=CHANNELS_LAST)
    fold_frozen_norms(network)
    fuse_activations(network)
    fused_stem.fuse_stem(network)
    images = drawn(1, 3, 35, 35)
    called = []
    for kernels, name in [
        *((masked_sum, name) for name in ("flat_masked_sum", "spread_masked_sum")),
        *((stem, name) for name in ("spread_pixels", "pool", "unpool")),
    ]:
        monkeypatch.setattr(kernels, name, counted(getattr(kernels, name), called))
    found = []
    for by_kernels in (False, True):
        for module in (fork, fused_stem):
            monkeypatch.setattr(module, "runs_kernels", lambda *given, answer=by_kernels: answer)
        network.zero_grad()
        network(images).square().mean().backward()
        found.append(
            [each.grad for name, each in network.named_parameters() if "conv" in name or "downsample.0" in name]
        )
        assert bool(called) == by_kernels
    # Thirteen blocks keep the side of their map and three halve it.
    assert [called.count(name) for name in ("flat_masked_sum", "spread_masked_sum")] == [13, 3]
    assert [called.count(name) for name in ("spread_pixels", "pool", "unpool")] == [1, 1, 1]
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))


def counted(function: Callable[..., Any], called: list[str]) -> Callable[..., Any]:
    def counting(*given: Any) -> Any:
        called.append(function.__name__)
        return function(*given)

    return counting
