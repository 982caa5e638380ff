"""How good an embedding is: retrieval metrics, results by class, thresholds, protocols, zero-shot prediction."""

from gspool.evaluation.averages import (
    Combination,
    FairAverage,
    MeanStd,
    RunResult,
    concatenate_embeddings,
    fair_average,
    mean_and_std,
    separate_average,
)
from gspool.evaluation.by_class import ClassResult, ConfusedPair, class_results, confused_pairs
from gspool.evaluation.folds import Fold, FoldRows, contiguous_folds
from gspool.evaluation.neighbours import Neighbours, nearest_neighbours
from gspool.evaluation.protocols import PROTOCOLS, Protocol, ProtocolReport, run_protocol
from gspool.evaluation.retrieval import RetrievalMetrics, retrieval_metrics
from gspool.evaluation.statistics import class_bootstrap
from gspool.evaluation.verification import Threshold, calibrate_threshold
from gspool.evaluation.zero_shot import ZeroShotPrediction, zero_shot_prediction

__all__ = [
    "PROTOCOLS",
    "ClassResult",
    "Combination",
    "ConfusedPair",
    "FairAverage",
    "Fold",
    "FoldRows",
    "MeanStd",
    "Neighbours",
    "Protocol",
    "ProtocolReport",
    "RetrievalMetrics",
    "RunResult",
    "Threshold",
    "ZeroShotPrediction",
    "calibrate_threshold",
    "class_bootstrap",
    "class_results",
    "concatenate_embeddings",
    "confused_pairs",
    "contiguous_folds",
    "fair_average",
    "mean_and_std",
    "nearest_neighbours",
    "retrieval_metrics",
    "run_protocol",
    "separate_average",
    "zero_shot_prediction",
]
