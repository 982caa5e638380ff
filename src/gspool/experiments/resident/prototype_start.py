"""Another start of the prototypes: k-center on local features of training images, before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gspool.experiments.resident.views import evaluation_view
from gspool.pooling import GSP

if TYPE_CHECKING:
    from gspool.experiments.resident.images import ResidentSet
    from gspool.training import DataConfig

# Greedy k-center looks at every feature for every prototype; so many show what there is to choose from.
MOST_TOKENS = 4_096


@torch.no_grad()
def start_from_tokens(model: Any, images: ResidentSet, data: DataConfig, size: int, count: int, seed: int) -> None:
    """Choose the prototypes of a model's GSP layer among the embedded local features of ``count`` training images.

    The authors' reference chooses among *pooled* vectors, which average pooling has made alike. Local features differ
    more, and it is them that the prototypes are compared with.

    Raises:
        ValueError: if the model has no GSP layer behind an embedding.
    """
    layers = [part for part in model.modules() if isinstance(part, GSP)]
    embed = getattr(getattr(model, "head", None), "embed", None)
    if len(layers) != 1 or embed is None:
        raise ValueError("starting from tokens needs a model with one GSP layer that embeds features, such as 'gsp'")
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(len(images), generator=generator)[:count].to(images.rows.device)
    was_training = model.training
    model.eval()
    features = model.feature_map(evaluation_view(images, places, data, size))
    model.train(was_training)
    tokens = embed(features).flatten(2).transpose(1, 2).flatten(0, 1)
    chosen = torch.randperm(len(tokens), generator=generator)[:MOST_TOKENS].to(tokens.device)
    layers[0].init_prototypes(tokens[chosen])
