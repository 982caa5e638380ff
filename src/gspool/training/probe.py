"""Linear probing: a linear classifier of a head's embedding, trained with cross-entropy on stored tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from gspool.training.build import build_optimiser
from gspool.training.classify import Classification, ClassificationConfig, top_1
from gspool.training.embed import embed_images
from gspool.training.heads import HeadResult, TokenHead, start_from
from gspool.training.launch import make_fabric
from gspool.training.loop import run_loop

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.training.config import TrainConfig
    from gspool.training.gpu_data import TensorSet

TOP1 = "top1"
CLASSIFIER = "classifier."
# Factor on the learning rate of the classifier, which starts at zero, while the head starts near its goal.
CLASSIFIER_RATE = 10.0


class LinearProbe(nn.Module):
    """A head and a linear classifier, which sees the unit vector of the head times the root of its length.

    So its inputs have a mean square of 1, whatever the backbone. It starts at zero: all classes alike.
    """

    def __init__(self, head: TokenHead, classes: int) -> None:
        super().__init__()
        self.head, self.scale = head, math.sqrt(head.out_dim)
        self.classifier = nn.Linear(head.out_dim, classes)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, rows: Float[Tensor, "B T C"]) -> Float[Tensor, "B K"]:
        """Compute the logits of stored tokens."""
        return self.classifier(self.scale * self.head(rows))

    def state(self) -> dict[str, Tensor]:
        """Return the head, and a classifier of its embeddings: logits are ``weight @ embedding + bias``."""
        return {
            **{name: value.cpu() for name, value in self.head.state_dict().items()},
            f"{CLASSIFIER}weight": self.scale * self.classifier.weight.detach().cpu(),
            f"{CLASSIFIER}bias": self.classifier.bias.detach().cpu(),
        }


class Probing(Classification):
    """Train a `LinearProbe` with the optimiser and the batch size of a training configuration."""

    measures = (TOP1,)

    def __init__(self, probe: LinearProbe, config: TrainConfig, train: TensorSet, watched: TensorSet) -> None:
        size = min(config.data.batch_size, len(train))
        settings = ClassificationConfig(batch_size=size, clip=config.optimiser.clip)
        super().__init__(probe, train, watched, settings, config.trainer.seed)
        self.optimiser_config = config.optimiser

    def optimiser(self) -> torch.optim.Optimizer:
        """Return Adam; the classifier has a learning rate of its own."""
        return build_optimiser(self.optimiser_config, self.module)

    def evaluate(self) -> Mapping[str, float]:
        """Measure top-1 accuracy on the validation pictures."""
        assert self.watched is not None
        return {TOP1: top_1(self.module, self.watched)}


def train_probe(
    model: TokenHead, config: TrainConfig, sets: Mapping[str, TensorSet], *, learn: bool = True
) -> HeadResult:
    """Train a head with a linear classifier, and measure top-1 accuracy at the best validation step.

    Arguments are those of `gspool.training.heads.train_head`; ``learn=False`` trains the classifier alone.

    Raises:
        ValueError: if a setting does not fit.
    """
    train, validation, test = (sets[name] for name in ("train", "validation", "test"))
    fabric = make_fabric(config.trainer)
    start_from(model, train, fabric.device, config.trainer.seed)
    classes = 1 + int(max(each.labels.max() for each in sets.values()))
    probe = LinearProbe(model, classes).to(fabric.device)
    if not learn:
        model.requires_grad_(False)
    multipliers = {"classifier": CLASSIFIER_RATE, **config.optimiser.multipliers}
    config = replace(
        config,
        optimiser=replace(config.optimiser, multipliers=multipliers),
        trainer=replace(config.trainer, monitor=TOP1, log_every=config.trainer.evaluate_every),
    )
    outcome = run_loop(Probing(probe, config, train, validation), fabric, config.trainer, config.schedule)
    trained = [*(model.parameters() if learn else ()), *probe.classifier.parameters()]
    return HeadResult(
        validation={TOP1: outcome.best_value or 0.0},
        test={TOP1: top_1(probe, test)},
        best_step=outcome.best_step,
        steps=outcome.steps,
        entropy=embed_images(model, test).entropy,
        parameters=sum(parameter.numel() for parameter in trained),
        seconds=outcome.seconds,
        state=probe.state(),
    )
