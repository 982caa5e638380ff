"""What of a model learns, and how fast: frozen parts, low-rank adapters (LoRA, by peft), groups of parameters."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.models.backbone import Backbone

Freeze = str
"""What is frozen of a backbone: ``none``, ``batchnorm``, ``all``, or ``all-but-N``: all but its last N blocks."""

ALL_BUT = re.compile(r"all-but-([1-9][0-9]{0,3})")
NORMALISATIONS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def check_freeze(freeze: object) -> None:
    """Check a setting of what is frozen."""
    known = ("none", "batchnorm", "all")
    if not isinstance(freeze, str) or not (freeze in known or ALL_BUT.fullmatch(freeze)):
        shown = repr(freeze)[:80]
        raise ValueError(
            f"freeze must be one of {', '.join(known)} or all-but-N (the last N blocks learn), got {shown}"
        )


def learnable_names(backbone: nn.Module) -> frozenset[str]:
    """Return the parameters that can be trained; others, fixed positions for example, must stay so after a thaw."""
    return frozenset(name for name, parameter in backbone.named_parameters() if parameter.requires_grad)


def freeze_parameters(backbone: Backbone, freeze: Freeze, learnable: Collection[str]) -> None:
    """Set which parameters of a backbone are trained: all, all but those of batch norm, the last blocks, or none.

    ``batchnorm`` is the setting of the authors' reference implementation: affine parameters and running statistics of
    batch norm stay fixed. ``all-but-2`` trains the last two blocks and what follows them. Only names in ``learnable``
    are ever trained. The statistics are fixed by `hold_statistics`, which must run after each change of mode.
    """
    check_freeze(freeze)
    trained = set(learnable)
    if freeze == "all":
        trained.clear()
    elif freeze == "batchnorm":
        trained -= {
            f"{path}.{name}".lstrip(".")
            for path, module in backbone.named_modules()
            if isinstance(module, _BatchNorm)
            for name, _ in module.named_parameters(recurse=False)
        }
    elif (found := ALL_BUT.fullmatch(freeze)) is not None:
        blocks, last = backbone.parameter_blocks(), int(found[1])
        if last >= len(blocks):
            raise ValueError(
                f"freeze={freeze!r}: this {type(backbone).__name__} has {len(blocks) - 1} blocks after its stem, so N "
                f"of all-but-N is at most {len(blocks) - 1}; use freeze='none' to train all of it"
            )
        trained.intersection_update(name for block in blocks[-last:] for name in block)
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(name in trained)


def hold_statistics(backbone: nn.Module, freeze: Freeze) -> None:
    """Put what is frozen into evaluation mode, where statistics are read and not written.

    What is frozen as a whole is put there as a whole: dropout and stochastic depth would only add noise to features
    that cannot adapt to it.
    """
    if freeze == "none":
        return
    if freeze == "all":
        backbone.eval()
        return
    for module in backbone.modules():
        if freeze == "batchnorm":
            held = isinstance(module, _BatchNorm)
        else:
            parameters = list(module.parameters())
            held = bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
        if held:
            module.eval()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, and restore the mode of every module afterwards: frozen batch norms differ from the rest."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


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


def parameter_groups(
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.0,
    multipliers: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Split the parameters of a model into groups for a `torch.optim` optimiser.

    A key of ``multipliers`` is a parameter's dotted name, the beginning of it, or any word in it (``"backbone"``,
    ``"head"``, ``"prototypes"``); the longest key that fits a parameter multiplies its learning rate. Parameters of
    normalisation layers are not decayed (Supp. 1.6; the authors' reference implementation decays all but batch norm).
    Frozen parameters are included: an optimiser skips them, and unfreezing later needs no new optimiser.

    Raises:
        ValueError: if a rate, a decay or a multiplier is negative, or a key fits no parameter.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        >>> for group in parameter_groups(model, lr=0.1, weight_decay=0.01, multipliers={"0.weight": 10}):
        ...     print(group["name"], len(group["params"]), group["lr"], group["weight_decay"])
        rest 1 0.1 0.01
        rest, not decayed 2 0.1 0.0
        0.weight 1 1.0 0.01
    """
    multipliers = dict(multipliers or {})
    for what, value in (("lr", lr), ("weight_decay", weight_decay), *multipliers.items()):
        if value < 0:
            raise ValueError(
                f"learning rates, their multipliers and weight decay cannot be negative, got {what} = {value}"
            )
    undecayed = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, NORMALISATIONS)
        for parameter in module.parameters(recurse=False)
    }
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for key in ("", *multipliers):
        groups[key, True], groups[key, False] = [], []
    # A set of its own for each key, because a key whose parameters all belong to longer keys is no mistake.
    fitting: set[str] = set()
    for name, parameter in model.named_parameters():
        keys = [key for key in multipliers if _fits(key, name)]
        fitting.update(keys)
        groups[max(keys, key=len, default=""), id(parameter) not in undecayed].append(parameter)
    for key in multipliers:
        if key not in fitting:
            raise ValueError(_unknown(key, model))
    return [
        {
            "name": (key or "rest") + ("" if decayed else ", not decayed"),
            "params": parameters,
            "lr": lr * multipliers.get(key, 1.0),
            "weight_decay": weight_decay if decayed else 0.0,
        }
        for (key, decayed), parameters in groups.items()
        if parameters
    ]


def _fits(key: str, name: str) -> bool:
    """Return whether a key is a dotted name, the beginning of it, or a word in it."""
    return name == key or name.startswith(f"{key}.") or key in name.split(".")


def _unknown(key: str, model: nn.Module) -> str:
    words = sorted({word for name, _ in model.named_parameters() for word in name.split(".") if not word.isdigit()})
    near = get_close_matches(key, words, n=3) or words[:8]
    return f"multipliers: no parameter is called {key!r}; names are made of words such as {', '.join(near)}"
