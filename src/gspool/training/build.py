"""Build the model, the loss and the optimiser of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gspool import losses
from gspool.data.image_set import mixed_seed
from gspool.losses import MetricLoss, ZSRLoss
from gspool.models import Embedder, parameter_groups
from gspool.models.sharing import model_place

if TYPE_CHECKING:
    from torch import nn

    from gspool.training.config import LossConfig, ModelConfig, OptimiserConfig, TrainConfig


def build_model(config: TrainConfig) -> Embedder:
    """Build the embedding model with weights drawn from the seed of the run, or those that it starts from.

    Raises:
        ValueError: if a name or an option does not fit, or the model to start from is another one.
    """
    model = config.model
    if config.start_from is not None:
        return _loaded_model(config.start_from, model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mixed_seed(config.trainer.seed, 0))
        return Embedder(
            model.backbone,
            model.pooling,
            model.dim,
            backbone_options=model.backbone_options,
            pooling_options=model.pooling_options,
            freeze=model.freeze,
            lora=model.lora,
        )


def _loaded_model(place: str, wanted: ModelConfig) -> Embedder:
    model = Embedder.from_pretrained(model_place(place))
    for name in ("backbone", "pooling", "dim"):
        here, there = getattr(wanted, name), getattr(model.settings, name)
        if here != there:
            raise ValueError(
                f"the run starts from {place}, whose {name} is {there!r}, and model.{name} is {here!r}; leave "
                f"--model.{name} out, or start from another model"
            )
    model.freeze(wanted.freeze)
    return model.add_lora(wanted.lora) if wanted.lora.rank else model


def build_loss(config: LossConfig, num_classes: int, dim: int, batch_size: int, seed: int) -> MetricLoss:
    """Build the loss for the classes of the training set; the memory of XBM is counted in batches of this run.

    Raises:
        ValueError: if a name or an option does not fit.
    """
    options = dict(config.options)
    if config.name.startswith("xbm+"):
        options.setdefault("batch_size", batch_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mixed_seed(seed, 1))
        metric = losses.create(config.name, num_classes, dim, config.preset, **options)
        miner = None if config.miner is None else losses.create_miner(config.miner, **config.miner_options)
        if not config.zsr:
            return MetricLoss(metric, miner=miner)
        known = ("dim", "ridge", "scale", "repeats")
        unknown = [name for name in config.zsr_options if name not in known]
        if unknown:
            raise ValueError(
                f"loss.zsr_options has no {', '.join(unknown)}; ZSRLoss has the options {', '.join(known)}"
            )
        return MetricLoss(metric, ZSRLoss(num_classes, **{"dim": dim, **config.zsr_options}), config.zsr, miner)


def build_optimiser(config: OptimiserConfig, module: nn.Module) -> torch.optim.Optimizer:
    """Build the optimiser of a module with the parts ``model`` and ``loss``; the loss's own parameters are proxies.

    Raises:
        ValueError: if a multiplier names no parameter.
    """
    multipliers = dict(config.multipliers)
    if any(name.startswith("loss.metric.") for name, _ in module.named_parameters()):
        multipliers.setdefault("loss.metric", config.proxies)
    groups = parameter_groups(module, config.lr, config.weight_decay, multipliers)
    momentum, squares = config.betas
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=momentum, nesterov=True)
    if config.name == "rmsprop":
        from timm.optim import RMSpropTF

        return RMSpropTF(groups, momentum=momentum, alpha=squares, eps=config.eps)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.name]
    return kind(groups, betas=config.betas, eps=config.eps)
