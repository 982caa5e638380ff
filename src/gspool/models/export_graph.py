"""What an exported model computes: images in, the chosen tensors out, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import nn

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.models.embedder import Embedder

Output = Literal["embedding", "weights", "attributes"]
Input = Literal["uint8", "float32"]
OUTPUTS: tuple[Output, ...] = get_args(Output)


class ExportGraph(nn.Module):
    """An embedding model with its outputs chosen: the unit vectors, the weights of the tokens, the attributes.

    Weights come as a map [B, h, w] where the tokens form one, so that a consumer need not know the grid.

    Args:
        model: the embedding model.
        outputs: which tensors, in this order; all that the pooling layer has, unless given.

    Raises:
        ValueError: if an output does not exist, is named twice, or is none that this pooling layer has.

    Example:
        >>> from gspool.models import Embedder
        >>> graph = ExportGraph(Embedder("resnet20", pooling="gsp", dim=8).eval(), ["embedding", "weights"])
        >>> embedding, weights = graph(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
        >>> embedding.shape, weights.shape
        (torch.Size([2, 8]), torch.Size([2, 8, 8]))
    """

    def __init__(self, model: Embedder, outputs: Sequence[Output] | None = None) -> None:
        super().__init__()
        self.model = model
        height, width = model.pixels.crop
        found = self._everything(example_images(model, 1, (height, width)))
        present: list[Output] = [name for name in OUTPUTS if name in found]
        for name in outputs or ():
            if name not in OUTPUTS:
                raise ValueError(f"there is no output {name!r}; the outputs are {', '.join(OUTPUTS)}")
            if name not in present:
                raise ValueError(
                    f"the pooling layer {model.settings.pooling} has no {name}; this model gives {', '.join(present)}"
                )
        if outputs is not None and (not outputs or len(set(outputs)) < len(outputs)):
            raise ValueError(f"name each output once, at least one of {', '.join(present)}, got {list(outputs)}")
        self.outputs: tuple[Output, ...] = tuple(outputs or present)

    @torch.no_grad()
    def _everything(self, images: Float[Tensor, "B 3 H W"]) -> dict[str, Tensor]:
        return _named(self.model, images)

    def forward(self, images: Float[Tensor, "B 3 H W"]) -> tuple[Tensor, ...]:
        """Embed, and give the chosen outputs in their order."""
        found = _named(self.model, images)
        return tuple(found[name] for name in self.outputs)


def _named(model: Embedder, images: Float[Tensor, "B 3 H W"]) -> dict[str, Tensor]:
    embedded = model.embed(images)
    weights = embedded.weights
    if weights is not None and embedded.grid is not None:
        weights = weights.unflatten(1, embedded.grid)
    named = {"embedding": embedded.embedding, "weights": weights, "attributes": embedded.attributes}
    return {name: value for name, value in named.items() if value is not None}


def example_images(
    model: Embedder, count: int, size: tuple[int, int], kind: Input | None = None, seed: int = 0
) -> Float[Tensor, "B 3 H W"]:
    """Draw images of a size as the model takes them: bytes, fractions, or the backbone's own pixels."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    draw = torch.Generator().manual_seed(seed)
    if (kind or input_kind(model)) == "uint8":
        return torch.randint(256, (count, 3, *size), dtype=torch.uint8, generator=draw).to(device)
    return torch.rand(count, 3, *size, generator=draw).to(device)


def input_kind(model: Embedder, kind: Input | None = None) -> Input:
    """Say what images an export takes: bytes, unless the model wants normalised pixels or fractions are asked for.

    Raises:
        ValueError: if there is no such kind, or bytes are asked of a model that takes normalised pixels.
    """
    if kind is None:
        return "uint8" if model.settings.normalise else "float32"
    if kind not in get_args(Input):
        raise ValueError(f"input must be one of {', '.join(get_args(Input))}, got {kind!r}")
    if kind == "uint8" and not model.settings.normalise:
        raise ValueError("this model was made with normalise=False and takes normalised pixels: use input='float32'")
    return kind
