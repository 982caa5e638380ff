"""Load weights from a file into a network, key by key: nothing is skipped silently."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from gspool.files import sha256_of
from gspool.models.freezing import merged_state

if TYPE_CHECKING:
    from torch import Tensor

# The key of a config that holds the SHA-256 of the weights file beside it.
CHECKSUM = "weights_sha256"
# A counter that older files lack and nothing in these networks reads.
COUNTER = "num_batches_tracked"


@contextmanager
def renamed_together(folder: Path, aside: str = ".saving") -> Iterator[Path]:
    """Yield an empty folder for new files, and rename all of them into ``folder`` at the end; after an error, none."""
    folder.mkdir(parents=True, exist_ok=True)
    # Inside the folder itself, because a rename is only atomic within one file system; under one name, so that the
    # next call removes what a crash left behind.
    temporary = folder / aside
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for written in temporary.iterdir():
            os.replace(written, folder / written.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_weights(module: nn.Module, path: Path) -> str:
    """Write the state of a module as .safetensors, adapters merged, and return the SHA-256 of the file."""
    # Copies, because safetensors refuses tensors that share memory, and some networks tie their weights.
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in merged_state(module).items()}
    # safetensors writes a temporary file, which its owner alone may read, and renames it.
    path.touch()
    mode = path.stat().st_mode
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(mode)
    return sha256_of(path)


def read_weights(path: str | Path, checksum: str | None = None) -> dict[str, Tensor]:
    """Read named tensors from a .safetensors file, or from a PyTorch file that holds tensors and nothing else.

    ``checksum`` is the SHA-256 that the config beside the file states; older models have none.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no weights file at {path}; pass the path of a .safetensors or .pth file")
    if checksum is not None and sha256_of(path) != checksum:
        raise ValueError(
            f"{path} is damaged: its SHA-256 is not the one in config.json. Download or save the model again "
            f"(if you changed the weights on purpose, remove {CHECKSUM} from config.json)"
        )
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
    """Copy tensors into a network after checking every name, shape, type and value."""
    check_fit(network, weights, source)
    not_finite = [name for name, value in weights.items() if value.is_floating_point() and not value.isfinite().all()]
    if not_finite:
        raise ValueError(f"the weights of {source} hold NaN or infinite numbers, in {_first(not_finite)}")
    try:
        network.load_state_dict(dict(weights), strict=False)
    except RuntimeError as error:
        raise ValueError(f"the weights of {source} do not fit {type(network).__name__}: {error}") from error


def check_fit(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Check names, shapes and types against a network, which may be on the meta device.

    Raises:
        ValueError: if names are missing or left over, or a shape or type differs; the first few are named.
    """
    own = network.state_dict()
    learned = dict(network.named_parameters(remove_duplicate=False))
    pairs = {name: (weights[name], own[name]) for name in own if name in weights}
    problems = {
        "missing in the file": [name for name in own if name not in weights and not name.endswith(COUNTER)],
        "unknown to the model": [name for name in weights if name not in own],
        "of another shape": [
            f"{name} (file {tuple(theirs.shape)}, model {tuple(ours.shape)})"
            for name, (theirs, ours) in pairs.items()
            # The first axis of a buffer may grow (the memory of a warm start), and its module knows how to load it.
            if theirs.shape != ours.shape and (name in learned or theirs.shape[1:] != ours.shape[1:])
        ],
        "of another type": [
            f"{name} (file {_kind(theirs)}, model {_kind(ours)})"
            for name, (theirs, ours) in pairs.items()
            if _kind(theirs) != _kind(ours)
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
