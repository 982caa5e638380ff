"""GSoP against its formula, written out in loops, and the parts that it is made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gspool.pooling.gsop import GSoP, averaging, covariance, resample
from oracle import EXACT


def numbers(tensor):
    return tensor.detach().numpy()


def frozen_norm(values, norm):
    """Batch norm with its running statistics; the first axis of ``values`` is the channel."""
    shape = (-1,) + (1,) * (values.ndim - 1)
    mean, variance = numbers(norm.running_mean).reshape(shape), numbers(norm.running_var).reshape(shape)
    scale, shift = numbers(norm.weight).reshape(shape), numbers(norm.bias).reshape(shape)
    return (values - mean) / np.sqrt(variance + norm.eps) * scale + shift


def reduced_in_loops(image, reduction):
    convolution, norm = reduction[1], reduction[2]
    weights, bias = numbers(convolution.weight)[:, :, 0, 0], numbers(convolution.bias)
    mixed = np.einsum("ac,chw->ahw", weights, np.maximum(image, 0.0)) + bias[:, None, None]
    return np.maximum(frozen_norm(mixed, norm), 0.0)


def gate_in_loops(samples, gate, rectify):
    """Samples [S, V]: their covariance, read row by row."""
    matrix = frozen_norm(np.atleast_2d(np.cov(samples, rowvar=False, ddof=0)), gate.norm)
    filters, biases = numbers(gate.row_wise.weight)[:, 0], numbers(gate.row_wise.bias)
    seen = np.array([matrix[index // 4] @ filters[index] + biases[index] for index in range(len(filters))])
    if rectify:
        seen = np.maximum(seen, 0.0)
    return 1.0 / (1.0 + np.exp(-(numbers(gate.mix.weight) @ seen + numbers(gate.mix.bias))))


def cells_in_loops(plane, rows, columns):
    """Average a plane [H, W] over the cells of a raster, the last and first of which may overlap."""
    height, width = plane.shape
    out = np.zeros((rows, columns))
    for row in range(rows):
        for column in range(columns):
            top, bottom = row * height // rows, -(-(row + 1) * height // rows)
            left, right = column * width // columns, -(-(column + 1) * width // columns)
            out[row, column] = plane[top:bottom, left:right].mean()
    return out


def gsop_in_loops(image, layer):
    channels, height, width = image.shape
    reduced = reduced_in_loops(image, layer.reduce_channels)
    channel_gate = gate_in_loops(reduced.reshape(len(reduced), -1).T, layer.channel_gate, rectify=False)
    grid = layer.grid
    raster = np.stack([cells_in_loops(plane, grid, grid) for plane in reduced_in_loops(image, layer.reduce_places)])
    spatial_gate = gate_in_loops(raster.reshape(len(raster), -1), layer.spatial_gate, rectify=True)
    spatial_gate = cells_in_loops(spatial_gate.reshape(grid, grid), height, width)
    fused = np.maximum(image * channel_gate[:, None, None], np.maximum(image, 0.0) * spatial_gate)
    return fused.reshape(channels, -1).mean(1)


def trained_layer(**options):
    """A layer whose batch norms have statistics and scales of their own."""
    torch.manual_seed(0)
    layer = GSoP(6, **options).double()
    for module in layer.modules():
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean)
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.bias)
    return layer.eval()


@pytest.mark.parametrize(("size", "grid"), [((3, 5), 2), ((4, 4), 4), ((1, 7), 3), ((1, 1), 2), ((5, 3), 1)])
def test_formula(size, grid):
    layer = trained_layer(attention_dim=5, grid=grid)
    x = torch.randn(2, 6, *size, dtype=torch.float64)
    expected = np.stack([gsop_in_loops(image.numpy(), layer) for image in x])
    torch.testing.assert_close(layer(x), torch.tensor(expected), **EXACT)


def test_vector_is_never_negative():
    assert (trained_layer(attention_dim=5)(torch.randn(4, 6, 3, 3, dtype=torch.float64)) >= 0).all()


def test_gates_without_weights_are_half_open():
    layer = trained_layer(attention_dim=5)
    for gate in (layer.channel_gate, layer.spatial_gate):
        torch.nn.init.zeros_(gate.mix.weight)
        torch.nn.init.zeros_(gate.mix.bias)
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x.relu().mean((2, 3)) / 2, **EXACT)


@pytest.mark.parametrize(("size", "cells"), [(8, 8), (7, 8), (8, 7), (1, 8), (8, 1), (14, 8), (3, 8), (63, 8)])
def test_averaging_is_adaptive_average_pooling(size, cells):
    x = torch.randn(2, 3, size, size + 2, dtype=torch.float64)
    ours = resample(x, averaging(size, cells, like=x), averaging(size + 2, cells, like=x))
    torch.testing.assert_close(ours, torch.nn.functional.adaptive_avg_pool2d(x, cells), **EXACT)


def test_on_maps_of_the_size_of_the_raster_the_raster_is_the_map():
    assert torch.equal(averaging(8, 8, like=torch.empty(0)), torch.eye(8))


def test_covariance():
    samples = torch.randn(2, 9, 4, dtype=torch.float64)
    expected = np.stack([np.cov(one, rowvar=False, ddof=0) for one in samples.numpy()])
    torch.testing.assert_close(covariance(samples), torch.tensor(expected), **EXACT)


def test_paper_settings():
    layer = GSoP(128)
    assert layer.reduce_channels[1].weight.shape == (128, 128, 1, 1)
    assert layer.channel_gate.row_wise.weight.shape == (4 * 128, 1, 128)
    assert layer.spatial_gate.row_wise.weight.shape == (4 * 64, 1, 64)
    assert layer.embedding == "before"
