"""ResNet20 learns to classify CIFAR: the backbone that the collage study starts from (Supp. 2.2).

Images lie on the device, where they are cropped and mirrored; one-cycle SGD in bf16. Promise: at least 68 % of the test
images of CIFAR-100 right, within two minutes of one H200.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from gspool.experiments.crew import steps_under_way
from gspool.models.cifar_resnet import Flavour, ResNet20
from gspool.models.normalisation import PixelNormalisation

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int64, UInt8
    from torch import Generator, Tensor

MARGIN = 4


class LabelledPixels(NamedTuple):
    """Images and their classes, on one device."""

    pixels: UInt8[Tensor, "N 3 32 32"]
    labels: Int64[Tensor, " N"]


@dataclass(frozen=True)
class PretrainingSettings:
    """How the classifier learns; the paper says only that it does."""

    flavour: Flavour = "postactivation"
    epochs: int = 100
    batch_size: int = 512
    lr: float = 0.5
    weight_decay: float = 5e-4
    momentum: float = 0.9
    seed: int = 0


class Pretrained(NamedTuple):
    """The weights of the backbone alone, and how well it classified with a linear layer on average pooling."""

    weights: dict[str, Tensor]
    accuracy: float
    seconds: float
    curve: list[dict[str, float]]


class Classifier(nn.Module):
    """The backbone, average pooling and a linear layer; it computes in bf16 on a GPU."""

    def __init__(self, flavour: Flavour, num_classes: int) -> None:
        super().__init__()
        self.backbone = ResNet20(flavour)
        self.normalisation = PixelNormalisation(self.backbone.pixels)
        self.linear = nn.Linear(self.backbone.channels, num_classes)

    def forward(self, pixels: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B K"]:
        """Give the logits."""
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
            features = self.backbone(self.normalisation(pixels))
            return self.linear(features.mean((2, 3))).float()


def shifted_and_mirrored(pixels: UInt8[Tensor, "B 3 H W"], generator: Generator) -> UInt8[Tensor, "B 3 H W"]:
    """Move every image by up to 4 pixels, black coming in at the edge, and mirror every second.

    Example:
        >>> images = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)
        >>> shifted_and_mirrored(images, torch.Generator().manual_seed(0)).shape
        torch.Size([5, 3, 32, 32])
    """
    count, _, height, width = pixels.shape
    device = pixels.device
    padded = F.pad(pixels, (MARGIN,) * 4)
    top, left = torch.randint(2 * MARGIN + 1, (2, count, 1), generator=generator, device=device)
    mirrored = torch.rand(count, 1, generator=generator, device=device) < 0.5
    across = torch.arange(width, device=device).expand(count, -1)
    columns = left + torch.where(mirrored, width - 1 - across, across)
    rows = top + torch.arange(height, device=device)
    image = torch.arange(count, device=device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def pretrain(
    train: LabelledPixels,
    test: LabelledPixels,
    settings: PretrainingSettings,
    say: Callable[[str], None] | None = None,
) -> Pretrained:
    """Train the classifier where the images are; the same settings on the same device give the same weights.

    Raises:
        ValueError: if there are fewer images than one batch holds.
    """
    if len(train.labels) < settings.batch_size:
        raise ValueError(f"{len(train.labels)} images do not fill a batch of {settings.batch_size}")
    started, device = time.perf_counter(), train.pixels.device
    torch.manual_seed(settings.seed)
    network = Classifier(settings.flavour, int(train.labels.max()) + 1).to(device)
    network = network.to(memory_format=torch.channels_last)
    generator = torch.Generator(device).manual_seed(settings.seed)
    optimiser = torch.optim.SGD(
        network.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay, nesterov=True
    )
    steps = len(train.labels) // settings.batch_size
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, settings.lr, total_steps=settings.epochs * steps, pct_start=0.2, anneal_strategy="linear"
    )
    network.train()
    curve: list[dict[str, float]] = []
    with steps_under_way(f"ResNet20, {settings.flavour}", 0, settings.epochs * steps) as made:
        for epoch in range(settings.epochs):
            order = torch.randperm(len(train.labels), generator=generator, device=device)
            for rows in order[: steps * settings.batch_size].split(settings.batch_size):
                images = shifted_and_mirrored(train.pixels[rows], generator)
                loss = F.cross_entropy(network(images), train.labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                made(f"{curve[-1]['accuracy']:.1%} right" if curve else "")
            if (epoch + 1) % 20 == 0 or epoch + 1 == settings.epochs:
                accuracy = classification_accuracy(network, test)
                curve.append({"epoch": epoch + 1, "loss": float(loss.detach()), "accuracy": accuracy})
                if say is not None:
                    said = f"{settings.flavour}: epoch {epoch + 1}, loss {curve[-1]['loss']:.3f}, {accuracy:.2%} right"
                    say(f"{said}, {time.perf_counter() - started:.0f} s")
    weights = {name: value.detach().cpu().contiguous() for name, value in network.backbone.state_dict().items()}
    return Pretrained(weights, curve[-1]["accuracy"], time.perf_counter() - started, curve)


@torch.no_grad()
def classification_accuracy(network: nn.Module, images: LabelledPixels, batch_size: int = 2_000) -> float:
    """Count how many images get their own class; the network stays in its mode."""
    was_training = network.training
    network.eval()
    right = sum(
        int((network(pixels).argmax(1) == labels).sum())
        for pixels, labels in zip(images.pixels.split(batch_size), images.labels.split(batch_size), strict=True)
    )
    network.train(was_training)
    return right / len(images.labels)


def description(settings: PretrainingSettings, trained: Pretrained) -> dict[str, object]:
    """Write down how a backbone was made, for the result that is built on it."""
    return {**asdict(settings), "accuracy": trained.accuracy, "seconds": round(trained.seconds, 1)}
