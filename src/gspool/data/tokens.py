"""The synthetic study: bags of tokens, some of the class, some shared by all classes (Sec. 5.1, Supp. 2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gspool.data.image_set import SPLITS, ImageSet, Split
from gspool.data.splits import checked_seed

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor


class TokenSamples:
    """Samples of token numbers [N] in place of images.

    Tokens of class c are c*T .. c*T+T-1; the shared background tokens come after those of all classes.
    """

    def __init__(self, samples: Int64[Tensor, "S N"], num_tokens: int, first_background: int) -> None:
        self.samples = samples
        self.num_tokens = num_tokens
        self.first_background = first_background

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Int64[Tensor, " N"]:
        return self.samples[index]

    def describe(self, index: int) -> str:
        """Return the row."""
        return f"sample {index}"


def tokens(
    split: Split,
    *,
    num_classes: int = 16,
    tokens_per_class: int = 4,
    background_tokens: int = 4,
    tokens_per_sample: int = 50,
    mixing_mean: float = 0.5,
    mixing_std: float = 0.1,
    samples_per_class: int = 100,
    seed: int = 0,
) -> ImageSet:
    """Draw samples of the synthetic study; ``set[i]`` is (token numbers, label), all splits have the same classes.

    The fraction of class tokens of a sample is drawn from N(0.5, 0.1), clipped to [0, 1]; that many of its 50 tokens
    are drawn with replacement from those of the class, the rest from the background. The paper does not give the number
    of samples: ``samples_per_class`` is ours. A model embeds ``set.images.num_tokens`` tokens.

    Raises:
        ValueError: if a number is not positive, or the seed is out of range.

    Example:
        >>> study = tokens("train", samples_per_class=3)
        >>> sample, label = study[5]
        >>> study.images.num_tokens, tuple(sample.shape), label, study.class_names[label]
        (68, (50,), 1, 'class 1')
    """
    for name, value in (
        ("num_classes", num_classes),
        ("tokens_per_class", tokens_per_class),
        ("background_tokens", background_tokens),
        ("tokens_per_sample", tokens_per_sample),
        ("samples_per_class", samples_per_class),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    checked_seed(seed)
    generator = torch.Generator().manual_seed(seed * len(SPLITS) + SPLITS.index(split))
    labels = torch.arange(num_classes).repeat_interleave(samples_per_class)
    shape = (len(labels), tokens_per_sample)
    share = (mixing_mean + mixing_std * torch.randn(len(labels), generator=generator)).clamp(0, 1)
    of_class = labels[:, None] * tokens_per_class + torch.randint(tokens_per_class, shape, generator=generator)
    first_background = num_classes * tokens_per_class
    background = first_background + torch.randint(background_tokens, shape, generator=generator)
    is_class = torch.arange(tokens_per_sample) < (share * tokens_per_sample).round()[:, None]
    samples = TokenSamples(
        torch.where(is_class, of_class, background), first_background + background_tokens, first_background
    )
    return ImageSet(samples, labels, [f"class {label}" for label in range(num_classes)], name="tokens", split=split)
