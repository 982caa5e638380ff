"""Cifar Collage: the pooling table's first two columns, the objects alone, a fine-tuned backbone, attention maps."""

from gspool.experiments.collage.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
