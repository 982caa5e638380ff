"""Weights from a file into a backbone, key by key: nothing is skipped in silence."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

# A counter that PyTorch added later; older files lack it and nothing in these networks reads it.
COUNTER = "num_batches_tracked"


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read named tensors from a .safetensors file, or from a PyTorch file that holds tensors and nothing else.

    Raises:
        ValueError: if there is no such file, or it does not hold named tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no weights file at {path}; give the path of a .safetensors or .pth file")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is not a readable safetensors file ({error}); fetch it again") from error
    try:
        # weights_only: a pickle may run any code it likes, tensors may not.
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path} is not a PyTorch file of plain tensors, and nothing else is ever unpickled; "
            "convert it to .safetensors where it came from"
        ) from error
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise ValueError(f"{path} holds {type(content).__name__}, expected a dictionary from names to tensors")
    return dict(content)


def load_weights(
    network: nn.Module,
    path: str | Path,
    ignore: Iterable[str] = (),
    adapt: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> None:
    """Copy a file's tensors into a network, in the network's own precision.

    Names that begin with one of ``ignore`` (a classifier, say) may be in the file; ``adapt`` may reshape what a
    converter wrote in a form of its own.

    Raises:
        ValueError: if names are missing or left over, or a shape differs; the first few are named.
    """
    weights = read_weights(path)
    weights = {name: value for name, value in weights.items() if not name.startswith(tuple(ignore))}
    copy_weights(network, adapt(weights) if adapt else weights, source=str(path))


def copy_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Copy tensors into a network after checking every name, and every shape of what is learned.

    Raises:
        ValueError: as `load_weights`.
    """
    own = network.state_dict()
    learned = dict(network.named_parameters(remove_duplicate=False))
    missing = [name for name in own if name not in weights and not name.endswith(COUNTER)]
    left_over = [name for name in weights if name not in own]
    misshapen = [
        f"{name} (file {tuple(weights[name].shape)}, model {tuple(own[name].shape)})"
        for name in learned  # a buffer may grow, and its module then knows how to load it
        if name in weights and weights[name].shape != own[name].shape
    ]
    problems = [
        f"{what}: {_first(names)}"
        for what, names in (
            ("missing in the file", missing),
            ("unknown to the model", left_over),
            ("of another shape", misshapen),
        )
        if names
    ]
    if problems:
        raise ValueError(
            f"the weights of {source} do not fit {type(network).__name__}: {'; '.join(problems)}. "
            "Make the model with the settings that the weights were saved with"
        )
    try:
        network.load_state_dict(dict(weights), strict=False)
    except RuntimeError as error:
        raise ValueError(f"the weights of {source} do not fit {type(network).__name__}: {error}") from error


def _first(names: list[str], shown: int = 3) -> str:
    """Name the first few of many."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
