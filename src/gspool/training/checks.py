"""What is checked before a training begins: its weights, its options, its metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gspool.evaluation.checked_input import as_ranks
from gspool.models.create import TIMM, begins_at_random, check_backbone_options, is_published
from gspool.models.embedder import Embedder
from gspool.models.pretrained import check_savable
from gspool.pooling.embedding import check_head_options
from gspool.training.config import TrainConfig
from gspool.training.gpu_data import TensorSet

if TYPE_CHECKING:
    from gspool.data import ImageSet
    from gspool.losses import MetricLoss


def check_beginning(config: TrainConfig) -> None:
    """Check that a backbone is not trained from random weights by accident.

    Raises:
        ValueError: if it would have random weights, though it is published with others or the configuration asks for
            others, and nothing says that random ones are intended; or if both were asked for.
    """
    model = config.model
    if config.start_from is not None:
        return
    at_random = begins_at_random(model.backbone, model.backbone_options)
    if not at_random:
        if config.from_scratch:
            raise ValueError(
                "from_scratch asks for random weights and model.backbone_options for others; leave one of them out"
            )
        return
    needed = is_published(model.backbone) if config.from_scratch is None else not config.from_scratch
    # Whoever writes pretrained: false has chosen.
    if not needed or "pretrained" in model.backbone_options:
        return
    ways = ["--model.backbone_options.weights FILE (docs/models.md lists where to get files)"]
    if model.backbone.startswith(TIMM):
        ways.insert(0, "--model.backbone_options.pretrained true, which downloads them")
    raise ValueError(
        f"{model.backbone} would begin with random weights, and this training needs pretrained ones: give "
        f"{', or '.join(ways)}; or --from_scratch if random weights are intended"
    )


def check_monitor(config: TrainConfig) -> None:
    """Check that the metric that is watched is one that is measured.

    Raises:
        ValueError: if there is no such metric, or a rank of R@K is not valid.
    """
    known = ["p@1", "p@r", "map@r", *(f"r@{k}" for k in as_ranks(config.output.ks))]
    if config.trainer.monitor not in known:
        raise ValueError(f"trainer.monitor must be one of {', '.join(known)}, got {config.trainer.monitor!r}")


def check_model_options(config: TrainConfig, arguments: Sequence[str] = ()) -> None:
    """Check the options of the pooling layer and the backbone, and explain how to remove those of a preset.

    The command line tells an option that was written there from one of a preset.

    Raises:
        ValueError: if the layer or the backbone does not have an option.
    """
    model = config.model
    for check, name, options, section in (
        (check_head_options, model.pooling, model.pooling_options, "--model.pooling_options"),
        (check_backbone_options, model.backbone, model.backbone_options, "--model.backbone_options"),
    ):
        try:
            check(name, options)
        except ValueError as error:
            written = {word.partition("=")[0] for word in arguments}
            inherited = {} if section in written else options
            foreign = [
                option
                for option, value in inherited.items()
                if f"{section}.{option}" not in written and _is_refused(check, name, {option: value})
            ]
            hint = (
                f". The preset or file has {', '.join(foreign)}, which is not for {name}: write {section} '{{}}' first"
            )
            raise ValueError(f"{error}{hint if foreign else ''}") from error


def _is_refused(check: Callable[[str, Mapping[str, Any]], None], name: str, option: Mapping[str, Any]) -> bool:
    try:
        check(name, option)
    except ValueError:
        return True
    return False


@torch.no_grad()
def check_fit(model: Any, loss: MetricLoss, images: ImageSet | TensorSet, pooling: str) -> None:
    """Embed one image, so that an error shows before training and not after the first epoch.

    Raises:
        ValueError: if the model could not be saved, the image does not fit it, or the loss needs attributes that it
            does not have.
    """
    if isinstance(model, Embedder):
        check_savable(model)
    was_training = model.training
    model.eval()
    try:
        first = torch.zeros(1, dtype=torch.int64)
        image = images.evaluation_images(first) if isinstance(images, TensorSet) else images[0][0][None]
        embedded = model.embed(image.to(next(model.parameters()).device))
    finally:
        model.train(was_training)
    if loss.zsr is not None and embedded.attributes is None:
        raise ValueError(
            f"loss.zsr = {loss.zsr_weight} regularises attributes, which the pooling layer {pooling!r} does not have; "
            "use gsp, gmp+gsp or gemean+gsp, or set loss.zsr to 0"
        )
