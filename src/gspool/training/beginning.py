"""What a training begins with: pretrained weights where there are any, random ones only where that is meant."""

from __future__ import annotations

from gspool.models.create import TIMM, begins_at_random, is_published
from gspool.training.config import TrainConfig


def check_beginning(config: TrainConfig) -> None:
    """Refuse to train a backbone from random weights in silence.

    Raises:
        ValueError: if it would have random weights, though it is published with others or the configuration asks for
            others, and nobody said that random ones are meant; or if both were asked for.
    """
    model = config.model
    at_random = begins_at_random(model.backbone, model.backbone_options)
    if not at_random:
        if config.from_scratch:
            raise ValueError(
                "from_scratch asks for random weights and model.backbone_options for others; leave one of them out"
            )
        return
    needed = is_published(model.backbone) if config.from_scratch is None else not config.from_scratch
    # Whoever writes pretrained: false has said it.
    if not needed or "pretrained" in model.backbone_options:
        return
    ways = ["--model.backbone_options.weights FILE (docs/models.md says where files come from)"]
    if model.backbone.startswith(TIMM):
        ways.insert(0, "--model.backbone_options.pretrained true, which downloads them")
    raise ValueError(
        f"{model.backbone} would begin with random weights, and this training with pretrained ones: give "
        f"{', or '.join(ways)}; or say --from_scratch if random weights are meant"
    )
