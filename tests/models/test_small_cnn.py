"""The small network for small pictures."""

from __future__ import annotations

import pytest
import torch

from gspool.models import create_backbone
from gspool.models.small_cnn import SmallCNN


@pytest.mark.parametrize(("size", "width"), [(64, 16), (32, 3), (9, 1)])
def test_three_halvings_and_eight_times_the_width(size, width):
    features = SmallCNN(width).eval()(torch.rand(2, 3, size, size))
    assert tuple(features.shape) == (2, 8 * width, size // 8, size // 8)


def test_the_order_of_memory_changes_nothing_but_speed():
    backbone, images = SmallCNN(4).double().eval(), torch.rand(2, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(backbone(images), backbone.layers(images))


def test_it_is_known_by_name_and_reads_its_weights(tmp_path):
    from safetensors.torch import save_file

    first = create_backbone("small_cnn", width=2)
    save_file(first.state_dict(), tmp_path / "weights.safetensors")
    second = create_backbone("small_cnn", width=2, weights=tmp_path / "weights.safetensors")
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
