"""Low-rank adapters (LoRA) on a backbone, by peft: added before training, merged into the weights when saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Lora:
    """Low-rank adapters on layers of a transformer; needs gspool[lora].

    Args:
        rank: rank of an adapter, 4 to 32 for example; 0 adds none.
        alpha: the output of an adapter is multiplied by alpha / rank; none is twice the rank.
        targets: names of the layers that get one. In timm, qkv and proj are the input and output of attention, fc1 and
            fc2 the MLP.
    """

    rank: int = 0
    alpha: float | None = None
    targets: list[str] = field(default_factory=lambda: ["qkv"])

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"lora.rank must be positive, or 0 for no adapters, got {self.rank}")


def insert_adapters(backbone: nn.Module, lora: Lora) -> None:
    """Put adapters on the layers that ``lora`` names; they learn, and everything else in the backbone is frozen.

    Raises:
        ValueError: if the backbone has no such layer, or already has adapters.
        ImportError: if peft is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        raise ImportError("low-rank adapters need peft: pip install 'gspool[lora]'", name="peft") from error
    if any(_adapted(backbone)):
        raise ValueError("this backbone has adapters already; save the model, which merges them, and load it again")
    alpha = 2 * lora.rank if lora.alpha is None else lora.alpha
    # peft takes whole numbers for alpha, and only uses alpha / rank.
    config = LoraConfig(r=lora.rank, lora_alpha=alpha, target_modules=list(lora.targets))
    try:
        inject_adapter_in_model(config, backbone)
    except ValueError as error:
        layers = {path.rpartition(".")[2] for path, layer in backbone.named_modules() if isinstance(layer, nn.Linear)}
        raise ValueError(
            f"lora.targets {lora.targets} do not fit this {type(backbone).__name__} ({error}); its linear layers are "
            f"called {', '.join(sorted(layers)) or 'nothing: it has none'}"
        ) from error


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the state of a module with its adapters added to the weights, under the names it has without them."""
    state = module.state_dict()
    for path, layer in _adapted(module):
        weights = {name: state[f"{path}.base_layer.{name}"] for name in layer.base_layer.state_dict()}
        weights["weight"] = weights["weight"] + layer.get_delta_weight("default")
        state = {name: value for name, value in state.items() if not name.startswith(f"{path}.")}
        state |= {f"{path}.{name}": value for name, value in weights.items()}
    return state


def _adapted(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the layers that peft has wrapped; known by their parts, so that peft is not imported for this."""
    return [(path, layer) for path, layer in module.named_modules() if hasattr(layer, "get_delta_weight")]
