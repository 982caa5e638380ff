"""Losses by name: the paper's six, any of them with a cross-batch memory, any other of pytorch-metric-learning."""

from __future__ import annotations

import builtins
import inspect
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from gspool.losses.presets import BATCH_SIZE, preset_values
from gspool.losses.xbm import CrossBatchMemoryLoss

if TYPE_CHECKING:
    from torch import nn

XBM = "xbm+"
XBM_OPTIONS = ("memory_batches", "start", "batch_size", "weight")
# The class of pytorch-metric-learning behind each name of the paper; `_paper_setting` adds what is not a number.
PAPER_LOSSES = {
    "c1": "ContrastiveLoss",
    "c2": "ContrastiveLoss",
    "triplet": "TripletMarginLoss",
    "ms": "MultiSimilarityLoss",
    "pnca": "NormalizedSoftmaxLoss",
    "panchor": "ProxyAnchorLoss",
}
# Not losses of embeddings and labels by themselves.
_NO_LOSSES = ("BaseMetricLossFunction", "GenericPairLoss")


def list() -> builtins.list[str]:
    """Name the paper's losses, alone and with a cross-batch memory.

    Example:
        >>> from gspool import losses
        >>> losses.list()[:7]
        ['c1', 'c2', 'triplet', 'ms', 'pnca', 'panchor', 'xbm+c1']
    """
    return [*PAPER_LOSSES, *(XBM + name for name in PAPER_LOSSES)]


def create(name: str, num_classes: int, dim: int, preset: str | None = None, **options: Any) -> nn.Module:
    """Make a loss of unit vectors and labels, with the paper's values for a data set by default.

    Args:
        name: ``c1``, ``c2``, ``triplet``, ``ms``, ``pnca``, ``panchor``; any of these after ``xbm+``; or a class of
            `pytorch_metric_learning.losses`, such as ``CircleLoss``.
        num_classes: number of training classes, for losses with proxies.
        dim: length of the embeddings.
        preset: row of `PRESETS`: ``cub`` (also without one), ``cars196``, ``inshop``, ``sop``, ``collage``.
        **options: what the class takes, instead of the preset's value. After ``xbm+`` also ``memory_batches``,
            ``start`` (steps before the memory is used), ``batch_size`` (32) and ``weight`` (1).

    Raises:
        ValueError: if there is no such loss, preset or option, or a size is not positive; near names are suggested.
        ImportError: if pytorch-metric-learning is not installed.

    Example:
        >>> import torch
        >>> from gspool import losses
        >>> contrastive = losses.create("c2", num_classes=100, dim=128, preset="cub")
        >>> contrastive.neg_margin
        0.3841
        >>> embeddings = torch.eye(4)[[0, 0, 1, 1]]
        >>> float(contrastive(embeddings, torch.tensor([3, 3, 8, 8])))
        0.0
    """
    for what, value in (("num_classes", num_classes), ("dim", dim)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{what} must be a positive integer, got {value!r}")
    if not isinstance(name, str):
        raise ValueError(f"a loss is named by a string such as 'c2', got {type(name).__name__}")
    plain = name.removeprefix(XBM)
    memory = dict(preset_values(preset, "xbm")) if plain != name else {}
    if plain != name:
        memory.update({option: options.pop(option) for option in XBM_OPTIONS if option in options})
    loss_class = _loss_class(plain)
    settings = {**_paper_setting(plain), **preset_values(preset, plain), **options}
    known = _parameters(loss_class)
    _check_options(name, settings, known - {"num_classes", "embedding_size"}, memory)
    sizes = {"num_classes": num_classes, "embedding_size": dim}
    loss: nn.Module = loss_class(**{size: value for size, value in sizes.items() if size in known}, **settings)
    if plain == name:
        return loss
    capacity = memory.pop("memory_batches") * memory.pop("batch_size", BATCH_SIZE)
    return CrossBatchMemoryLoss(loss, dim, capacity, **memory)


def _library() -> Any:
    try:
        from pytorch_metric_learning import losses
    except ImportError as error:
        raise ImportError(
            "losses other than ZSRLoss come from pytorch-metric-learning, which is not installed; "
            "install it with: pip install 'gspool[train]'"
        ) from error
    return losses


def _loss_class(name: str) -> type[nn.Module]:
    library = _library()
    classes = {
        each: cast("type[nn.Module]", value)
        for each, value in vars(library).items()
        if inspect.isclass(value) and issubclass(value, library.BaseMetricLossFunction) and each not in _NO_LOSSES
    }
    if name in PAPER_LOSSES:
        return classes[PAPER_LOSSES[name]]
    if name in classes:
        return classes[name]
    folded = {each.lower(): each for each in (*PAPER_LOSSES, *classes)}
    near = [folded[each] for each in get_close_matches(name.lower(), folded, n=2)]
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    raise ValueError(
        f"there is no loss {name!r}{hint} the paper's are {', '.join(PAPER_LOSSES)}, each also after xbm+, "
        f"and pytorch-metric-learning has {', '.join(sorted(classes))}"
    )


def _paper_setting(name: str) -> dict[str, Any]:
    """Return what the paper's losses set besides numbers: the distance, and what is averaged."""
    from pytorch_metric_learning.distances import CosineSimilarity, LpDistance

    from gspool.losses.batch_sum import SumOverBatchSize

    if name == "c1":
        return {"distance": CosineSimilarity(), "reducer": SumOverBatchSize()}
    if name in ("c2", "triplet"):
        # Both average over the non-zero terms by themselves (positives and negatives of C2 apart).
        return {"distance": LpDistance(normalize_embeddings=True, p=2, power=1)}
    return {}


def _parameters(loss_class: type) -> set[str]:
    """Collect what a class takes; most of them pass on what they do not know, so its ancestors are asked as well."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names: set[str] = set()
    for ancestor in loss_class.__mro__:
        if ancestor.__module__.startswith("pytorch_metric_learning") and "__init__" in vars(ancestor):
            parameters = inspect.signature(ancestor).parameters.values()
            names.update(each.name for each in parameters if each.kind in kinds)
    return names - {"self", "mat_based_loss"}


def _check_options(name: str, given: dict[str, Any], known: set[str], memory: dict[str, Any]) -> None:
    for option in given:
        if option not in known:
            right = sorted(known) + [*XBM_OPTIONS] * bool(memory)
            near = get_close_matches(option, right, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ";"
            raise ValueError(f"loss {name!r} has no option {option!r}{hint} its options are {', '.join(right)}")
