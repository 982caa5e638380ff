"""The head of a frozen backbone: tokens computed once, a start as the frozen feature, and the network after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.data import ImageSet
from gspool.features import extract_tokens
from gspool.models import Embedder, Lora
from gspool.models.device import free_memory
from gspool.pooling.warm_start import WarmStart
from gspool.terminal.bar import work_bar
from gspool.training.checkpoint import BEST, read_checkpoint
from gspool.training.gpu_data import TensorSet, query_rows
from gspool.training.heads import TokenHead, start_from
from gspool.training.parsing import plain, read_config
from gspool.training.run_folder import CONFIG, read_result

if TYPE_CHECKING:
    from gspool.data.image_set import Split
    from gspool.features import FeatureConfig, TokenLayout, TokenSet
    from gspool.losses import MetricLoss
    from gspool.models import Backbone
    from gspool.training.config import TrainConfig


def trains_on_tokens(config: TrainConfig, model: Any, train: Any, title: str | None = None) -> bool:
    """Check whether the head of a frozen backbone trains on stored tokens, and print the reason under a title."""
    reason = _needs_images(config, model, train)
    if title is not None and reason is None:
        print(
            f"{title}: the backbone is frozen, so its tokens are computed once and the head trains on them "
            "(--features.enabled false trains on random crops instead)",
            flush=True,
        )
    elif title is not None:
        print(f"{title}: the frozen backbone runs at every step, because {reason}", flush=True)
    return reason is None


def _needs_images(config: TrainConfig, model: Any, train: Any) -> str | None:
    if not config.features.enabled:
        return "features.enabled is false"
    if not isinstance(model, Embedder) or not isinstance(train, ImageSet):
        return "its model or data were made by the caller"
    size, pixels = tuple(train[0][0].shape[1:]), model.pixels
    if config.data.transform != "crop" and (size != pixels.crop or pixels.resize != size[0]):
        return (
            f"images of {size[0]} x {size[1]} are used as they are (data.transform {config.data.transform}); "
            f"--data.transform crop brings them to the {pixels.crop[0]} x {pixels.crop[1]} that tokens are computed of"
        )
    return None


class TokenData(NamedTuple):
    """Stored tokens by split, every view of a training picture an entry of its own, and their layout."""

    sets: dict[Split, TensorSet]
    layout: TokenLayout


def token_data(
    model: Embedder, sets: Mapping[Split, ImageSet], config: TrainConfig, device: torch.device, progress: bool
) -> TokenData:
    """Compute the tokens that are not stored yet, and load all of them where half of the memory holds them."""
    options = {"name": config.model.backbone, "device": str(device)}
    found = computed_tokens(model.backbone, list(sets.values()), config.features, progress, **options)
    tokens = dict(zip(sets, found, strict=True))
    if fits_memory(found, device, 1 if device.type == "cuda" else config.trainer.devices):
        for split, each in tokens.items():
            each.load(device, views=None if split == "train" else 1)
    return TokenData({split: token_entries(each, split) for split, each in tokens.items()}, found[0].layout)


def computed_tokens(
    backbone: Backbone, sets: Sequence[ImageSet], config: FeatureConfig, progress: bool, **options: Any
) -> list[TokenSet]:
    """Compute the tokens of sets with a progress bar; ``options`` are others of `gspool.features.extract_tokens`."""
    with work_bar("tokens", 0, sum(map(len, sets)), progress, "pictures") as bar:
        return extract_tokens(backbone, sets, config, advance=lambda count: bar.advance(steps=count), **options)


def fits_memory(tokens: Iterable[TokenSet], device: torch.device | str, processes: int) -> bool:
    """Check whether every process can hold all tokens in half of the free memory of the device."""
    return processes * sum(each.memory_bytes for each in tokens) < free_memory(device) // 2


def token_entries(tokens: TokenSet, split: Split) -> TensorSet:
    """Return stored tokens as a set: all views of training pictures, and the first view of others."""
    images, views = tokens.images, tokens.views
    known: dict[str, Any] = {"class_names": tuple(images.class_names), "name": f"{images.name} tokens", "split": split}
    if split == "train":
        return TensorSet.of(tokens.entries(), tokens.labels.repeat_interleave(views), **known)
    first = views * torch.arange(len(tokens))
    return TensorSet(tokens.entries(), tokens.labels, first, queries=query_rows(images), **known)


def token_head(model: Embedder, data: TokenData, config: TrainConfig, device: torch.device) -> TokenHead:
    """Return the head of a model as it trains on tokens; it shares its parameters with the model.

    It starts as the frozen feature, unless the run starts from trained weights.
    """
    head = TokenHead(model.to(device).head, data.layout, config.head)
    if config.start_from is None:
        start_from(head, data.sets["train"], device, config.trainer.seed)
        for part in head.modules():
            if isinstance(part, WarmStart):
                # The prototypes are chosen, so there is nothing left to collect.
                part.done.fill_(True)
                part.collecting = False
    return head


def head_first(config: TrainConfig) -> TrainConfig:
    """Return the first phase of a run: the head alone, on the tokens of the frozen backbone."""
    first = deepcopy(config)
    first.model.freeze, first.model.lora, first.baseline, first.head.steps = "all", Lora(), None, 0
    first.optimiser.lr, first.optimiser.weight_decay = config.head.lr, 0.0
    # Factors on parts of the head stay; that of the whole head is for the network beside it.
    for name in [*first.optimiser.multipliers]:
        if name == "head" or name.startswith("backbone"):
            del first.optimiser.multipliers[name]
    first.schedule.warmup_epochs = 0.0
    first.trainer.max_steps = config.head.steps
    # No time limit: the network must not go on from half a head.
    first.trainer.max_time, first.trainer.max_seconds = None, 0.0
    return first


def earlier_figures(config: TrainConfig) -> dict[str, dict[str, float]]:
    """Return the test metrics of the run that this one starts from; {} if it starts anew or has other data."""
    run = Path(config.start_from or "")
    if config.start_from is None or not (run / CONFIG).is_file():
        return {}
    earlier, result = read_config(run / CONFIG), read_result(run)
    # Options such as seed and fold choose other test classes.
    theirs, ours = ({key: plain(each.data)[key] for key in ("name", "root", "options")} for each in (earlier, config))
    if result is None or theirs != ours:
        return {}
    name = "head alone" if earlier.model.freeze == "all" else "before fine-tuning"
    return {**result.get("before", {}), name: result["metrics"]}


def load_proxies(loss: MetricLoss, run: Path) -> None:
    """Go on with the proxies of an earlier phase, where they are those of the same loss and classes."""
    state = read_checkpoint(run / BEST).get("loss") if (run / BEST).is_file() else None
    shapes = {name: value.shape for name, value in loss.state_dict().items()}
    if state is not None and shapes == {name: value.shape for name, value in state.items()}:
        loss.load_state_dict(state)
