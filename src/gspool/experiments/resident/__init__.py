"""Training on data that lies on the GPU: decoded once, cropped there, many runs beside each other.

`load_resident` brings a data set to a device, `train_resident` trains and measures one model on it, `train_all` many of
them side by side. A run is described by the same `TrainConfig` as any other, and gives the same numbers.
"""

from gspool.experiments.resident.course import DivergedError
from gspool.experiments.resident.crops import centre_boxes, draw_crops, resample
from gspool.experiments.resident.evaluation import evaluate_resident
from gspool.experiments.resident.feature_maps import FeatureMapEmbedder
from gspool.experiments.resident.fleet import Job, train_all
from gspool.experiments.resident.folded_norms import fold_frozen_norms
from gspool.experiments.resident.fused_activations import fuse_activations
from gspool.experiments.resident.fused_stem import fuse_stem
from gspool.experiments.resident.images import ResidentSet, load_resident
from gspool.experiments.resident.outcome import Outcome
from gspool.experiments.resident.pace import Pace
from gspool.experiments.resident.train import train_resident

__all__ = [
    "DivergedError",
    "FeatureMapEmbedder",
    "Job",
    "Outcome",
    "Pace",
    "ResidentSet",
    "centre_boxes",
    "draw_crops",
    "evaluate_resident",
    "fold_frozen_norms",
    "fuse_activations",
    "fuse_stem",
    "load_resident",
    "resample",
    "train_all",
    "train_resident",
]
