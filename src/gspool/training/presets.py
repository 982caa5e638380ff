"""Complete configurations by name: the default, the paper's benchmarks, your own folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gspool.pooling.registry import without_class_token
from gspool.training.config import (
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimiserConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from gspool.training.head_settings import USUAL, frozen_defaults, layer_options


class Benchmark(NamedTuple):
    """What differs between the paper's benchmarks in its fair protocol (Supp. 1.6)."""

    prototypes: int
    evaluate_every: int
    patience: int


# 64 or 128 prototypes, validation every 100 or 1,000 steps, stop after 15 or 10 evaluations without a better one.
FAIR = {
    "cub": Benchmark(prototypes=64, evaluate_every=100, patience=15),
    "cars196": Benchmark(prototypes=64, evaluate_every=100, patience=15),
    "sop": Benchmark(prototypes=128, evaluate_every=1_000, patience=10),
    "inshop": Benchmark(prototypes=128, evaluate_every=1_000, patience=10),
}


def fair(name: str, proxies: bool) -> TrainConfig:
    """Return a benchmark of the fair protocol, first fold: C2 (4 images of 8 classes) or ProxyNCA++ (1 image of 32).

    Weights of the backbone are not in it: add ``--model.backbone_options.weights FILE``.
    """
    benchmark = FAIR[name]
    return TrainConfig(
        data=DataConfig(
            name=name,
            options={"fold": 0, "folds": 4},
            classes_per_batch=32 if proxies else 8,
            images_per_class=1 if proxies else 4,
            transform="crop",
            cache=True,
            workers=8,
        ),
        model=ModelConfig(
            backbone="bninception",
            pooling="gsp",
            # epsilon 0.5 for losses with proxies and 5 for others; the prototypes start as in the authors' reference.
            pooling_options={
                "prototypes": benchmark.prototypes,
                "mu": 0.3,
                "epsilon": 0.5 if proxies else 5.0,
                "warm_start": 1024,
            },
            dim=128,
            freeze="batchnorm",
        ),
        loss=LossConfig(name="pnca" if proxies else "c2", preset=name, zsr=0.1),
        optimiser=OptimiserConfig(lr=1e-5, weight_decay=1e-4, betas=(0.9, 0.99), eps=1e-7, clip=10.0, proxies=100.0),
        schedule=ScheduleConfig(warmup_epochs=1.0 if proxies else 0.0),
        # The paper gives no last step: early stopping ends its runs.
        trainer=TrainerConfig(
            max_steps=200_000, evaluate_every=benchmark.evaluate_every, patience=benchmark.patience, monitor="map@r"
        ),
    )


# Initial learning rates of the conventional protocol; batches of 128 and decay 1e-4 belong to BN-Inception.
CONVENTIONAL_LR = {"cub": 1e-5, "cars196": 1e-4, "sop": 1e-4, "inshop": 1e-4}


def conventional(name: str) -> TrainConfig:
    """Return a benchmark of the conventional protocol: all training classes, P@1 on the test classes, 512-D."""
    config = fair(name, proxies=False)
    config.data.options = {}
    config.data.classes_per_batch = 32
    config.model.dim = 512
    config.loss.name = "xbm+c1"
    config.optimiser.lr = CONVENTIONAL_LR[name]
    config.schedule = ScheduleConfig(name="plateau", factor=0.5, patience=4)
    config.trainer.monitor, config.trainer.monitor_split = "p@1", "test"
    config.trainer.evaluate_every = FAIR[name].evaluate_every // 4
    return config


class LIBCTraining(NamedTuple):
    """What differs between the benchmarks in the trainings of LIBC, from the configurations of its authors."""

    classes: int
    images: int
    lr: float
    weight_decay: float
    epoch: int  # steps: the number of training images divided by the batch


LIBC = {
    "cub": LIBCTraining(classes=6, images=9, lr=1.564e-4, weight_decay=6.06e-6, epoch=108),
    "cars196": LIBCTraining(classes=10, images=7, lr=3.668e-4, weight_decay=2.55e-9, epoch=115),
    "sop": LIBCTraining(classes=15, images=6, lr=2.472e-4, weight_decay=2.77e-13, epoch=661),
    "inshop": LIBCTraining(classes=14, images=4, lr=1.127e-4, weight_decay=1.06e-7, epoch=462),
}


def libc(name: str) -> TrainConfig:
    """Return LIBC in the conventional protocol: ResNet50, 512-D, 70 epochs, its authors' batches and learning rates."""
    config, own = conventional(name), LIBC[name]
    config.data.classes_per_batch, config.data.images_per_class = own.classes, own.images
    # The weights of torchvision, which its authors start from, and batch norm that learns.
    config.model.backbone, config.model.freeze = "timm/resnet50.tv_in1k", "none"
    config.model.backbone_options = {"pixels": {"size": 227, "resize": 256}}
    config.loss.name = "libc"
    # One learning rate for the backbone and the message passing.
    config.optimiser = OptimiserConfig(
        name="radam", lr=own.lr, weight_decay=own.weight_decay, betas=(0.9, 0.999), eps=1e-8, clip=0.0, proxies=1.0
    )
    # Theirs is divided by 10 after 30 epochs.
    config.schedule = ScheduleConfig(name="plateau", factor=0.1, patience=30)
    config.trainer.max_steps, config.trainer.evaluate_every, config.trainer.patience = 70 * own.epoch, own.epoch, None
    return config


def collage() -> TrainConfig:
    """Return Cifar Collage (Supp. 2.2); add the weights of a ResNet20 trained on CIFAR-100."""
    steps_an_epoch = 300  # 19,200 collages in batches of 64
    return TrainConfig(
        data=DataConfig(name="collage", classes_per_batch=16, images_per_class=4),
        model=ModelConfig(
            backbone="resnet20", pooling_options={"prototypes": 128, "mu": 0.2, "epsilon": 10.0, "warm_start": 1024}
        ),
        from_scratch=False,
        loss=LossConfig(name="pnca", preset="collage", zsr=0.5),
        optimiser=OptimiserConfig(lr=1e-3, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-7, proxies=1.0),
        schedule=ScheduleConfig(name="plateau", factor=0.5, patience=5),
        trainer=TrainerConfig(max_steps=50 * steps_an_epoch, evaluate_every=steps_an_epoch, patience=15),
    )


# After 10 images of every class are held out, in batches of 1,024.
IMAGENET_BATCH, IMAGENET_EPOCH = 1_024, (1_281_167 - 10_000) // 1_024


def imagenet(backbone: str, pixels: dict[str, Any], epochs: int) -> TrainConfig:
    """Return what both ImageNet classifiers share: the paper replaces the pooling of two Keras models (Supp.).

    It gives no settings of their training, and no mu and epsilon. docs/imagenet.md says which choices are whose.
    """
    return TrainConfig(
        data=DataConfig(
            name="imagenet",
            options={"held_out": 10},
            classes_per_batch=IMAGENET_BATCH,
            sampler="shuffled",
            transform="crop",
            transform_options={"resize": None, "area": [0.08, 1.0]},
            check="none",  # a million images take too long to decode beforehand; a broken one is named when it comes
            workers=12,
        ),
        model=ModelConfig(
            backbone=backbone,
            backbone_options={"pixels": pixels},
            pooling_options={"prototypes": 64, "mu": 0.3, "epsilon": 5.0},
            dim=None,
        ),
        from_scratch=True,
        loss=LossConfig(name="cross_entropy", options={"label_smoothing": 0.1}),
        schedule=ScheduleConfig(name="cosine", ramp=5 / epochs),
        trainer=TrainerConfig(
            max_steps=epochs * IMAGENET_EPOCH,
            evaluate_every=IMAGENET_EPOCH,
            monitor="accuracy",
            ema=0.9999,
            precision="bf16-mixed",
            log_every=50,
        ),
    )


def imagenet_resnetv2_50() -> TrainConfig:
    """Return ResNetV2-50 on ImageNet: 90 epochs of SGD, 0.1 for every 256 images."""
    config = imagenet("timm/resnetv2_50", {"size": 224, "resize": 256}, epochs=90)
    config.optimiser = OptimiserConfig(
        name="sgd", lr=0.1 * IMAGENET_BATCH / 256, weight_decay=1e-4, betas=(0.9, 0.9), clip=0.0, proxies=1.0
    )
    return config


def imagenet_efficientnetv2_b3() -> TrainConfig:
    """Return EfficientNetV2-B3 on ImageNet with the settings of its authors: 350 epochs of RMSProp, AutoAugment."""
    # Its authors evaluate at a larger size than they train at.
    config = imagenet("timm/tf_efficientnetv2_b3", {"size": 300, "resize": 332}, epochs=350)
    config.data.transform_options |= {"size": 240, "auto_augment": True}
    config.model.backbone_options["drop_path_rate"] = 0.2
    config.loss.options["dropout"] = 0.3
    config.optimiser = OptimiserConfig(
        name="rmsprop",
        lr=0.016 * IMAGENET_BATCH / 256,
        weight_decay=1e-5,
        betas=(0.9, 0.9),
        eps=1e-3,
        clip=0.0,
        proxies=1.0,
    )
    return config


def glyphs() -> TrainConfig:
    """Return the default: GSP and its baseline GAP on glyph collages with a small network; minutes on a CPU."""
    return TrainConfig(schedule=ScheduleConfig(name="cosine"), baseline="gap")


# Frozen backbone of `folder` and of `gspool compare`. Its own size is 518: five times the tokens, hardly for a CPU.
BACKBONE, IMG_SIZE = "timm/vit_small_patch14_dinov2", 224


def folder() -> TrainConfig:
    """Return a start for your own images: a GSP head on a frozen DINOv2, whose weights are downloaded."""
    config = TrainConfig(
        data=DataConfig(name="folder", classes_per_batch=32, images_per_class=4, transform="crop", workers=4),
        model=ModelConfig(
            backbone=BACKBONE,
            backbone_options={"pretrained": True, "img_size": IMG_SIZE},
            dim=384,  # the width of the backbone, so that the head starts as the identity
            freeze="all",
        ),
        optimiser=OptimiserConfig(lr=3e-4, weight_decay=0.0, betas=(0.9, 0.999), proxies=100.0),
        trainer=TrainerConfig(max_steps=1200, evaluate_every=25, patience=6, precision="auto"),
    )
    # Without its class token, DINOv2 loses more than any pooling of its patches gains (docs/frozen_study.md).
    return _with_frozen_layer(config, "gsp+cls", class_token=True)


def _with_frozen_layer(config: TrainConfig, layer: str, class_token: bool) -> TrainConfig:
    """Set a layer, with its settings on frozen features, and where its prototypes start and how fast they learn."""
    own = {**USUAL, **frozen_defaults(layer, class_token)}
    config.model.pooling, config.model.pooling_options = layer, layer_options(own)
    config.head.prototypes, config.head.rate = own["prototypes_from"], own["rate"]
    return config


def with_available_backbone(config: TrainConfig) -> TrainConfig:
    """Replace a backbone that is neither cached nor can be downloaded by one that is cached, and say so.

    Without a class token there, the layer pools the feature map with the options of such features.

    Raises:
        ConnectionError: if no other backbone is cached, with what can be done.
    """
    from gspool.models.create import has_class_token
    from gspool.models.hub import announced_backbone

    model = config.model
    if not model.backbone_options.get("pretrained") or "weights" in model.backbone_options:
        return config
    chosen = announced_backbone(model.backbone, "--model.backbone")
    if chosen == model.backbone:
        return config
    model.backbone, model.backbone_options = chosen, {"pretrained": True}
    layer, with_class_token = without_class_token(model.pooling)
    if with_class_token and not has_class_token(chosen):
        return _with_frozen_layer(config, layer, class_token=False)
    return config


def with_whole_network(config: TrainConfig) -> TrainConfig:
    """Change a configuration so that the whole network learns, slowly, from a head that is trained already."""
    config.model.freeze = "batchnorm"
    config.optimiser = OptimiserConfig(lr=1e-5, weight_decay=1e-4, proxies=100.0, multipliers={"head": 10.0})
    config.trainer.max_steps, config.trainer.evaluate_every, config.trainer.patience = 2_000, 50, 10
    config.trainer.precision = "32-true"
    return config


def folder_finetune() -> TrainConfig:
    """Return `folder` in two phases: the head on stored tokens, then the whole network; needs a GPU."""
    config = with_whole_network(folder())
    config.head.steps = 400
    return config


# Functions, so that changing one configuration changes no other.
PRESETS: dict[str, Callable[[], TrainConfig]] = {
    "glyphs": glyphs,
    "folder": folder,
    "folder-finetune": folder_finetune,
    **{f"paper/{name}": lambda name=name: fair(name, proxies=False) for name in FAIR},  # type: ignore[misc]
    **{f"paper/{name}-pnca": lambda name=name: fair(name, proxies=True) for name in FAIR},  # type: ignore[misc]
    **{f"paper/{name}-conventional": lambda name=name: conventional(name) for name in FAIR},  # type: ignore[misc]
    **{f"paper/{name}-libc": lambda name=name: libc(name) for name in LIBC},  # type: ignore[misc]
    "paper/collage": collage,
    "paper/imagenet-resnetv2-50": imagenet_resnetv2_50,
    "paper/imagenet-efficientnetv2-b3": imagenet_efficientnetv2_b3,
}
DEFAULT = "glyphs"


def preset(name: str) -> TrainConfig:
    """Return a configuration by name.

    Raises:
        ValueError: if there is no such preset.

    Example:
        >>> preset("paper/cub").model.pooling_options["mu"]
        0.3
    """
    if name not in PRESETS:
        from difflib import get_close_matches

        near = get_close_matches(str(name), PRESETS, n=1)
        hint = f", did you mean {near[0]!r}?" if near else ";"
        raise ValueError(f"there is no preset {name!r}{hint} the presets are {', '.join(PRESETS)}")
    return PRESETS[name]()


def changed(config: TrainConfig, **values: Any) -> TrainConfig:
    """Return a copy with other values, by dotted names with two underscores for the dot.

    Example:
        >>> changed(glyphs(), trainer__seed=3).trainer.seed
        3
    """
    from copy import deepcopy

    copy = deepcopy(config)
    for name, value in values.items():
        *path, last = name.split("__")
        place: Any = copy
        for part in path:
            place = getattr(place, part)
        if not hasattr(place, last):
            raise ValueError(f"a configuration has no {name.replace('__', '.')!r}")
        setattr(place, last, value)
    return copy
