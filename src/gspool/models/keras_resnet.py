"""The ResNet50 of Keras applications, the "ResNet50" that the authors' reference implementation loads."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from gspool.models.backbone import Backbone
from gspool.models.pixels import Pixels
from gspool.models.weights import load_weights

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# Keras writes 1.001e-5 where others write 1e-5; the weights were trained with it.
EPSILON = 1.001e-5
STAGES = {"layer1": 3, "layer2": 4, "layer3": 6, "layer4": 3}  # blocks


class KerasResNet50(Backbone):
    """ResNet50 as Keras builds it: 2048 channels, an 8x8 map of 227 pixels; names as in torchvision.

    It is torchvision's ResNet50 but for three things: the stride of a down-sampling block sits in its first 1x1 (as in
    He et al. 2016), batch norm adds 1.001e-5, and pixels are BGR from 0 to 255 minus a mean. Weights of one load into
    the other without an error and give wrong features.

    Args:
        weights: a file with the ImageNet weights of Keras under torchvision's names.

    Example:
        >>> import torch
        >>> backbone = KerasResNet50().eval()
        >>> with torch.no_grad():
        ...     tuple(backbone(torch.zeros(1, 3, 65, 65)).shape)
        (1, 2048, 3, 3)
    """

    def __init__(self, weights: str | Path | None = None) -> None:
        # torchvision takes a second to import, and the other backbones do not need it.
        from torchvision.models import resnet50

        mean = (103.939, 116.779, 123.68)
        super().__init__(2048, Pixels(mean, (1.0, 1.0, 1.0), "BGR", "0-255", size=227, resize=256))
        for name, part in resnet50(norm_layer=partial(nn.BatchNorm2d, eps=EPSILON)).named_children():
            if name not in ("avgpool", "fc"):
                self.add_module(name, part)
        for name in ("layer2", "layer3", "layer4"):
            first: Any = self.get_submodule(name)[0]  # type: ignore[index]
            first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride
        if weights is not None:
            load_weights(self, weights, ignore=("fc.",))

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 2048 h w"]:
        """Compute the feature map before global pooling."""
        x = pixels
        # Before the max pooling Keras pads with zeros. After a ReLU this equals PyTorch's padding, never the maximum.
        for part in self.children():
            x = part(x)
        return x
