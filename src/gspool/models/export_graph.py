"""The graph to export: images in, the chosen tensors out, in a fixed order; and its description for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn

from gspool.version import __version__

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.models.embedder import Embedder

Output = Literal["embedding", "weights", "attributes"]
Input = Literal["uint8", "float32"]
OUTPUTS: tuple[Output, ...] = get_args(Output)
# The name of the description in an ONNX file (metadata) and, with .json, in a .pt2 archive.
KEY = "gspool"
MEANING = {
    "embedding": "unit vectors; compare two by their dot product",
    "weights": "where the model looked: one number per position, summing to 1 over an image",
    "attributes": "how much of each prototype an image holds, summing to 1",
}


class ExportGraph(nn.Module):
    """An embedding model with chosen outputs: the unit vectors, the weights of the tokens, the attributes.

    Weights are a map [B, h, w] where the tokens form one, so that a consumer need not know the grid.

    Args:
        model: the embedding model.
        outputs: which tensors, in this order; by default all that the pooling layer has.
        input: the type of the images; bytes unless the model takes normalised pixels.

    Raises:
        ValueError: if an output does not exist, is named twice, or is none that this pooling layer has, or if the model
            does not take this type.

    Example:
        >>> from gspool.models import Embedder
        >>> graph = ExportGraph(Embedder("resnet20", pooling="gsp", dim=8).eval(), ["embedding", "weights"])
        >>> embedding, weights = graph(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
        >>> embedding.shape, weights.shape
        (torch.Size([2, 8]), torch.Size([2, 8, 8]))
    """

    def __init__(self, model: Embedder, outputs: Sequence[Output] | None = None, input: Input | None = None) -> None:
        super().__init__()
        self.model = model
        self.input: Input = input or ("uint8" if model.settings.normalise else "float32")
        if self.input not in get_args(Input):
            raise ValueError(f"input must be one of {', '.join(get_args(Input))}, got {input!r}")
        if self.input == "uint8" and not model.settings.normalise:
            raise ValueError(
                "this model was created with normalise=False and takes normalised pixels: use input='float32'"
            )
        with torch.no_grad():
            found = self._all_outputs(self.example(1, model.pixels.crop))
        present: list[Output] = [name for name in OUTPUTS if name in found]
        for name in outputs or ():
            if name not in OUTPUTS:
                raise ValueError(f"there is no output {name!r}; the outputs are {', '.join(OUTPUTS)}")
            if name not in present:
                raise ValueError(
                    f"the pooling layer {model.settings.pooling} has no {name}; this model has {', '.join(present)}"
                )
        if outputs is not None and (not outputs or len(set(outputs)) < len(outputs)):
            raise ValueError(f"name each output once, at least one of {', '.join(present)}, got {list(outputs)}")
        self.outputs: tuple[Output, ...] = tuple(outputs or present)

    def _all_outputs(self, images: Float[Tensor, "B 3 H W"]) -> dict[str, Tensor]:
        embedded = self.model.embed(images)
        weights = embedded.weights
        if weights is not None and embedded.grid is not None:
            weights = weights.unflatten(1, embedded.grid)
        named = {"embedding": embedded.embedding, "weights": weights, "attributes": embedded.attributes}
        return {name: value for name, value in named.items() if value is not None}

    def forward(self, images: Float[Tensor, "B 3 H W"]) -> tuple[Tensor, ...]:
        """Embed, and return the chosen outputs in their order."""
        found = self._all_outputs(images)
        return tuple(found[name] for name in self.outputs)

    def example(self, count: int, size: tuple[int, int], seed: int = 0) -> Float[Tensor, "B 3 H W"]:
        """Draw random images as the graph takes them."""
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        draw = torch.Generator().manual_seed(seed)
        if self.input == "uint8":
            return torch.randint(256, (count, 3, *size), dtype=torch.uint8, generator=draw).to(device)
        return torch.rand(count, 3, *size, generator=draw).to(device)

    def describe(self, size: tuple[int, int] | None) -> dict[str, Any]:
        """Describe the exported model: its settings, its input with the preprocessing before it, its outputs.

        ``size`` is the image size that the graph is bound to, None for any.
        """
        pixels = self.model.pixels
        settings = self.model.settings._asdict()
        settings.pop("pixels")
        if self.input == "uint8":
            values = "RGB bytes, 0 to 255; the model normalises"
        elif self.model.settings.normalise:
            values = "RGB, 0 to 1; the model normalises"
        else:
            values = (
                f"normalised by you: {pixels.channel_order}, {pixels.range}, minus {list(pixels.mean)}, "
                f"divided by {list(pixels.std)}"
            )
        return {
            "gspool": __version__,
            "model": {**settings, "out_dim": self.model.out_dim},
            "input": {
                "name": "images",
                "type": self.input,
                "axes": ["batch", "3", "height", "width"],
                "values": values,
                # Resize the shorter side, then crop the middle: what the figures of the model were measured with.
                "resize": pixels.resize,
                "interpolation": pixels.interpolation,
                "crop": list(pixels.crop),
                "size": None if size is None else list(size),
            },
            "normalisation": pixels.as_dict(),
            "outputs": {name: MEANING[name] for name in self.outputs},
        }
