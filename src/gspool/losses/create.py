"""Losses by name: the paper's six, also with a cross-batch memory, LIBC, cross-entropy, pytorch-metric-learning's."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, cast

from gspool.losses.cross_entropy import CrossEntropyLoss
from gspool.losses.libc import LIBCLoss
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
# Losses with a class of their own here, all of which classify: they read embeddings at their own length, all parts
# together, and have no pairs.
CLASSIFIERS: dict[str, type[nn.Module]] = {"cross_entropy": CrossEntropyLoss, "libc": LIBCLoss}
# Classes of pytorch-metric-learning that are not a loss or a miner by themselves begin so.
_ABSTRACT = ("Base", "GenericPairLoss")


def list() -> builtins.list[str]:
    """Name the paper's losses, alone and with a cross-batch memory, cross-entropy and LIBC.

    Example:
        >>> from gspool import losses
        >>> losses.list()[:7]
        ['c1', 'c2', 'triplet', 'ms', 'pnca', 'panchor', 'xbm+c1']
        >>> losses.list()[-1]
        'libc'
    """
    return [*PAPER_LOSSES, *(XBM + name for name in PAPER_LOSSES), *CLASSIFIERS]


def create(name: str, num_classes: int, dim: int, preset: str | None = None, **options: Any) -> nn.Module:
    """Make a loss of unit vectors and labels, with the paper's values for a data set by default.

    Args:
        name: ``c1``, ``c2``, ``triplet``, ``ms``, ``pnca``, ``panchor``; any of these after ``xbm+``; ``libc``;
            ``cross_entropy``, a classifier; or a class of `pytorch_metric_learning.losses`, such as ``CircleLoss``.
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
    settings = {**(_paper_setting(plain) if plain in PAPER_LOSSES else {}), **preset_values(preset, plain), **options}
    known = _parameters(loss_class)
    right = known - {"num_classes", "embedding_size"} | ({*XBM_OPTIONS} if memory else set())
    _check_options(f"loss {name!r}", settings, right)
    sizes = {"num_classes": num_classes, "embedding_size": dim}
    loss: nn.Module = loss_class(**{size: value for size, value in sizes.items() if size in known}, **settings)
    if plain == name:
        return loss
    capacity = memory.pop("memory_batches") * memory.pop("batch_size", BATCH_SIZE)
    return CrossBatchMemoryLoss(loss, dim, capacity, **memory)


def create_miner(name: str, **options: Any) -> nn.Module:
    """Make a miner of pytorch-metric-learning, which chooses the pairs or triplets of a batch that the loss sees.

    Args:
        name: a class of `pytorch_metric_learning.miners`, such as ``MultiSimilarityMiner`` or ``TripletMarginMiner``.
        **options: what the class takes.

    Raises:
        ValueError: if there is no such miner or option; near names are suggested.
        ImportError: if pytorch-metric-learning is not installed.

    Example:
        >>> create_miner("TripletMarginMiner", type_of_triplets="semihard").margin
        0.2
    """
    classes = _library_classes("miners", "BaseMiner")
    if name not in classes:
        raise ValueError(f"there is no miner {name!r}{_near(name, classes)} there are {', '.join(sorted(classes))}")
    _check_options(f"miner {name!r}", options, _parameters(classes[name]))
    return classes[name](**options)


def _library_classes(module: Literal["losses", "miners"], base: str) -> dict[str, type[nn.Module]]:
    """Return the classes of a module of pytorch-metric-learning that can be used by themselves."""
    try:
        from pytorch_metric_learning import losses, miners
    except ImportError as error:
        raise ImportError(
            "losses other than ZSRLoss come from pytorch-metric-learning, which is not installed; "
            "install it with: pip install 'gspool[train]'"
        ) from error
    library = {"losses": losses, "miners": miners}[module]
    return {
        name: cast("type[nn.Module]", value)
        for name, value in vars(library).items()
        if inspect.isclass(value) and issubclass(value, getattr(library, base)) and not name.startswith(_ABSTRACT)
    }


def _near(name: str, names: Iterable[str]) -> str:
    folded = {each.lower(): each for each in names}
    near = [folded[each] for each in get_close_matches(name.lower(), folded, n=2)]
    return f"; did you mean {' or '.join(near)}?" if near else ";"


def _loss_class(name: str) -> type[nn.Module]:
    if name in CLASSIFIERS:
        return CLASSIFIERS[name]
    classes = _library_classes("losses", "BaseMetricLossFunction")
    if name in PAPER_LOSSES:
        return classes[PAPER_LOSSES[name]]
    if name in classes:
        return classes[name]
    raise ValueError(
        f"there is no loss {name!r}{_near(name, (*PAPER_LOSSES, *CLASSIFIERS, *classes))} the paper's are "
        f"{', '.join(PAPER_LOSSES)}, each also after xbm+, and {', '.join(CLASSIFIERS)}; "
        f"pytorch-metric-learning has {', '.join(sorted(classes))}"
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


def _parameters(made: type) -> set[str]:
    """Collect what a class takes; most of them pass on what they do not know, so its ancestors are asked as well."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names: set[str] = set()
    for ancestor in made.__mro__:
        if ancestor.__module__.startswith(("pytorch_metric_learning", "gspool")) and "__init__" in vars(ancestor):
            parameters = inspect.signature(ancestor).parameters.values()
            names.update(each.name for each in parameters if each.kind in kinds)
    return names - {"self", "mat_based_loss"}


def _check_options(what: str, given: Iterable[str], known: set[str]) -> None:
    for option in given:
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ";"
            raise ValueError(f"{what} has no option {option!r}{hint} its options are {', '.join(sorted(known))}")
