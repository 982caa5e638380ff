"""Load weights from a file into a network, key by key: nothing is skipped silently."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from gspool.files import sha256_of
from gspool.models.lora import merged_state

if TYPE_CHECKING:
    from torch import Tensor

# The key of a config that holds the SHA-256 of the weights file beside it.
CHECKSUM = "weights_sha256"
# A counter that older files lack and nothing in these networks reads.
COUNTER = "num_batches_tracked"
# The types of safetensors that a network here may have.
KINDS = dict.fromkeys(("F64", "F32", "F16", "BF16"), "floating") | dict.fromkeys(("I64", "I32", "U8", "BOOL"), "whole")


def write_weights(module: nn.Module, path: Path) -> str:
    """Write the state of a module as .safetensors, adapters merged, and return the SHA-256 of the file."""
    # Copies, because safetensors refuses tensors that share memory, and some networks tie their weights.
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in merged_state(module).items()}
    save_file(weights, path, metadata={"format": "pt"})
    return sha256_of(path)


def check_checksum(path: Path, checksum: str | None, config: str) -> None:
    """Compare a weights file with the SHA-256 in its config; None, in older models, is not compared.

    Raises:
        ValueError: if they differ.
    """
    if checksum is not None and sha256_of(path) != checksum:
        raise ValueError(
            f"{path} is damaged: its SHA-256 is not the one in {config}. Download or save the model again "
            f"(if you changed the weights on purpose, remove {CHECKSUM} from {config})"
        )


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read named tensors from a .safetensors file, or from a PyTorch file that holds tensors and nothing else.

    Raises:
        ValueError: if there is no such file, or it does not hold named tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no weights file at {path}; pass the path of a .safetensors or .pth file")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(
                f"{path} is not a readable safetensors file ({error}); download or save it again"
            ) from error
    try:
        # weights_only: a pickle may run any code, tensors may not.
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
    converter wrote in another form.

    Raises:
        ValueError: if names are missing or left over, or a shape differs; the first few are named.
    """
    weights = read_weights(path)
    weights = {name: value for name, value in weights.items() if not name.startswith(tuple(ignore))}
    copy_weights(network, adapt(weights) if adapt else weights, source=str(path))


def copy_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Copy tensors into a network after checking every name, shape, type and value.

    Raises:
        ValueError: as `load_weights`.
    """
    check_fit(network, {name: Form(tuple(value.shape), _kind(value)) for name, value in weights.items()}, source)
    not_finite = [name for name, value in weights.items() if value.is_floating_point() and not value.isfinite().all()]
    if not_finite:
        raise ValueError(f"the weights of {source} hold NaN or infinite numbers, in {_first(not_finite)}")
    try:
        network.load_state_dict(dict(weights), strict=False)
    except RuntimeError as error:
        raise ValueError(f"the weights of {source} do not fit {type(network).__name__}: {error}") from error


class Form(NamedTuple):
    """The shape of a tensor in a file, and whether it holds floating point or whole numbers (or something else)."""

    shape: tuple[int, ...]
    kind: str


def file_forms(path: Path) -> dict[str, Form]:
    """Read shapes and types of a .safetensors file from its header; no tensor is loaded.

    Raises:
        ValueError: if it is not a safetensors file, or holds types that no network here has.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: Form(tuple(each.get_shape()), KINDS.get(each.get_dtype(), each.get_dtype()))
                for name, each in header.items()
            }
    except SafetensorError as error:
        raise ValueError(f"{path} is not a readable safetensors file ({error}); download or save it again") from error


def check_fit(network: nn.Module, forms: Mapping[str, Form], source: str) -> None:
    """Check names, shapes and types against a network, which may be on the meta device.

    Raises:
        ValueError: if names are missing or left over, or a shape or type differs; the first few are named.
    """
    own = network.state_dict()
    learned = dict(network.named_parameters(remove_duplicate=False))
    common = [name for name in own if name in forms]
    problems = {
        "missing in the file": [name for name in own if name not in forms and not name.endswith(COUNTER)],
        "unknown to the model": [name for name in forms if name not in own],
        "of another shape": [
            f"{name} (file {forms[name].shape}, model {tuple(own[name].shape)})"
            for name in common
            # The first axis of a buffer may grow (the memory of a warm start), and its module knows how to load it.
            if forms[name].shape != own[name].shape
            and (name in learned or forms[name].shape[1:] != own[name].shape[1:])
        ],
        "of another type": [
            f"{name} (file {forms[name].kind}, model {_kind(own[name])})"
            for name in common
            if forms[name].kind != _kind(own[name])
        ],
    }
    found = [f"{problem}: {_first(names)}" for problem, names in problems.items() if names]
    if found:
        raise ValueError(
            f"the weights of {source} do not fit {type(network).__name__}: {'; '.join(found)}. "
            "Create the model with the settings that the weights were saved with"
        )


def _kind(tensor: Tensor) -> str:
    return "floating" if tensor.is_floating_point() else "complex" if tensor.is_complex() else "whole"


def _first(names: list[str], shown: int = 3) -> str:
    """Name the first few of many, printable and not too long: the names come from a file."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join("".join(c if c.isprintable() else "?" for c in name[:200]) for name in names[:shown]) + more
