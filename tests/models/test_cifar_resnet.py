from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gspool.models import create_backbone


def shaken(backbone: nn.Module) -> dict[str, Tensor]:
    """Move batch norm away from its start, so that a forgotten part shows; give the state."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in backbone.state_dict().items():
            if value.ndim == 1:
                value.copy_(torch.rand(value.shape, generator=generator) + (0.5 if "var" in name else 0.0))
    return backbone.eval().state_dict()


def norm(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    mean, variance, scale, shift = (
        state[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return scale * (x - mean) / torch.sqrt(variance + 1e-5) + shift


def test_postactivation_is_the_network_of_he_et_al() -> None:
    backbone = create_backbone("resnet20")
    state = shaken(backbone)
    pixels = torch.randn(2, 3, 32, 32)
    x = norm(state, "bn1", F.conv2d(pixels, state["conv1.weight"], padding=1)).relu()
    for stage in range(3):
        for block in range(3):
            name = f"stages.{stage}.{block}"
            stride = 2 if stage and not block else 1
            y = norm(state, f"{name}.bn1", F.conv2d(x, state[f"{name}.conv1.weight"], stride=stride, padding=1)).relu()
            y = norm(state, f"{name}.bn2", F.conv2d(y, state[f"{name}.conv2.weight"], padding=1))
            if stride == 2:
                zeros = torch.zeros(2, x.shape[1] // 2, x.shape[2] // 2, x.shape[3] // 2)
                x = torch.cat([zeros, x[:, :, ::2, ::2], zeros], dim=1)
            x = (x + y).relu()
    with torch.no_grad():
        torch.testing.assert_close(backbone(pixels), x)
    assert x.shape == (2, 64, 8, 8)


def test_postactivation_has_the_weights_of_the_published_table() -> None:
    # He et al. 2016, Table 6: 0.27 M with a classifier of 10 classes.
    parameters = sum(parameter.numel() for parameter in create_backbone("resnet20").parameters())
    assert parameters + 65 * 10 == 269_722


def test_preactivation_flavour_is_the_reference_network() -> None:
    backbone = create_backbone("resnet20", flavour="preactivation-bottleneck")
    state = shaken(backbone)
    pixels = torch.randn(2, 3, 32, 32)
    x = norm(state, "bn1", F.conv2d(pixels, state["conv1.weight"], padding=1)).relu()
    for stage in range(3):
        for block in range(2):
            name = f"stages.{stage}.{block}"
            stride = 2 if stage and not block else 1
            first = stage == block == 0
            y = x if first else norm(state, f"{name}.before.0", x).relu()
            y = F.conv2d(y[:, :, ::stride, ::stride], state[f"{name}.conv1.weight"])
            y = F.conv2d(norm(state, f"{name}.bn2", y).relu(), state[f"{name}.conv2.weight"], padding=1)
            y = F.conv2d(norm(state, f"{name}.bn3", y).relu(), state[f"{name}.conv3.weight"])
            if block == 0:
                x = F.conv2d(x[:, :, ::stride, ::stride], state[f"{name}.shortcut.weight"])
            x = x + y
    x = norm(state, "after.0", x).relu()
    with torch.no_grad():
        torch.testing.assert_close(backbone(pixels), x, rtol=1e-4, atol=1e-4)
    assert x.shape == (2, backbone.channels, 8, 8) == (2, 256, 8, 8)
