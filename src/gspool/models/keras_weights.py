"""Convert the ImageNet weights that Keras publishes for its ResNet50 to a file that `keras/resnet50` loads.

Run as `python -m gspool.models.keras_weights resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5 NAME.safetensors`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save

from gspool.files import write_atomic
from gspool.models.keras_resnet import STAGES, KerasResNet50
from gspool.terminal.status import run_told

if TYPE_CHECKING:
    from torch import Tensor

CALL = "python -m gspool.models.keras_weights"
# An older file has the same name, hence the md5.
MEANT = (
    "the expected file is resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5 as Keras has published it since 2019 "
    "(md5 4d473c1dd8becc155b73f8504c6f6626), which keras.applications.ResNet50(weights='imagenet', include_top=False) "
    "downloads to ~/.keras/models"
)
CLASSIFIERS = ("probs", "predictions")  # as the published file calls it, and as Keras does today
# The parts of a batch norm, in Keras and in PyTorch.
NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def units() -> dict[str, tuple[str, str]]:
    """Return PyTorch's names of each convolution and its batch norm by Keras' name without _conv or _bn."""
    names = {"conv1": ("conv1", "bn1")}
    for stage, (name, blocks) in enumerate(STAGES.items(), start=2):
        for index in range(blocks):
            keras, own = f"conv{stage}_block{index + 1}", f"{name}.{index}"
            if index == 0:
                names[f"{keras}_0"] = (f"{own}.downsample.0", f"{own}.downsample.1")
            names |= {f"{keras}_{part}": (f"{own}.conv{part}", f"{own}.bn{part}") for part in (1, 2, 3)}
    return names


def expected_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the published file, without the classifier."""
    with torch.device("meta"):
        own = KerasResNet50().state_dict()
    shapes: dict[str, tuple[int, ...]] = {}
    for keras, (convolution, _) in units().items():
        out, channels, height, width = own[f"{convolution}.weight"].shape
        shapes |= {f"{keras}_conv/kernel": (height, width, channels, out), f"{keras}_conv/bias": (out,)}
        shapes |= {f"{keras}_bn/{part}": (out,) for part in NORM}
    return shapes


def read_keras(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a Keras file as ``layer/part``, float32, without the classifier."""
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ImportError("reading Keras files needs h5py: pip install 'gspool[keras]'", name="h5py") from error
    if not path.is_file():
        raise ValueError(f"there is no file {path}; {MEANT}")
    tensors: dict[str, Tensor] = {}

    def keep(name: str, found: h5py.Group | h5py.Dataset) -> None:
        # conv1_conv/conv1_conv/kernel:0 is the group of a layer, then the name of its variable.
        layer, _, variable = name.removesuffix(":0").partition("/")
        if isinstance(found, h5py.Dataset) and found.dtype.kind == "f" and layer not in CLASSIFIERS:
            tensors[f"{layer}/{variable.rpartition('/')[-1]}"] = torch.from_numpy(found[...]).float()

    try:
        with h5py.File(path) as file:
            file.visititems(keep)
    except OSError as error:
        raise ValueError(f"{path} is not HDF5, or its download is incomplete ({error}); {MEANT}") from error
    return tensors


def check(tensors: Mapping[str, Tensor], source: Path) -> None:
    """Check that names and shapes are exactly those of the published file."""
    if any(name.startswith("layers/") for name in tensors):
        raise ValueError(f"{source} is a .weights.h5 file of Keras 3, which has another layout; {MEANT}")
    if any(name.startswith("res2a_branch2a/") for name in tensors):
        raise ValueError(f"{source} is from before 2019, when layers had names such as res2a_branch2a; {MEANT}")
    expected = {f"{name} {shape}" for name, shape in expected_shapes().items()}
    found = {f"{name} {tuple(value.shape)}" for name, value in tensors.items()}
    problems = {"missing": expected - found, "left over": found - expected}
    found_wrong = [f"{len(names)} {what} ({'; '.join(sorted(names)[:3])})" for what, names in problems.items() if names]
    if found_wrong:
        raise ValueError(f"{source} does not hold the tensors of Keras' ResNet50: {', '.join(found_wrong)}; {MEANT}")


def in_torch(tensors: Mapping[str, Tensor], half: bool = False) -> dict[str, Tensor]:
    """Convert checked tensors to PyTorch: its names, kernels OIHW instead of HWIO, no biases of convolutions.

    Batch norm subtracts its mean from the output of the convolution, so a bias can be subtracted from the mean.
    """
    weights = {}
    for keras, (convolution, norm) in units().items():
        kernel = tensors[f"{keras}_conv/kernel"].permute(3, 2, 0, 1).contiguous()
        weights[f"{convolution}.weight"] = kernel.half() if half else kernel
        weights |= {f"{norm}.{own}": tensors[f"{keras}_bn/{part}"] for part, own in NORM.items()}
        weights[f"{norm}.running_mean"] = tensors[f"{keras}_bn/moving_mean"] - tensors[f"{keras}_conv/bias"]
    return weights


def main(arguments: Sequence[str]) -> None:
    """Read, check, convert and write; a ValueError names what is wrong with the files."""
    about = __doc__.split("\n")[0]
    parser = argparse.ArgumentParser(prog=CALL, description=about, epilog=f"{MEANT[0].upper()}{MEANT[1:]}.")
    parser.add_argument("source", type=Path, metavar="KERAS.h5", help="the published file, with or without classifier")
    parser.add_argument("target", type=Path, metavar="WEIGHTS.safetensors", help="the file to write")
    parser.add_argument("--half", action="store_true", help="convolutions in float16, for a file of half the size")
    options = parser.parse_args(arguments)
    if options.target.suffix != ".safetensors":
        raise ValueError(f"the file to write is a .safetensors file, got {options.target}; name it NAME.safetensors")
    tensors = read_keras(options.source)
    check(tensors, options.source)
    write_atomic(options.target, save(in_torch(tensors, options.half), metadata={"format": "pt"}))
    print(f"wrote {options.target}, {options.target.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    sys.exit(run_told(CALL, main, sys.argv[1:]))
