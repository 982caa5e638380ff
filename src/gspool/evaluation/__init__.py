"""How good an embedding is: retrieval metrics, the paper's protocols, the zero-shot prediction test."""

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
from gspool.evaluation.folds import Fold, FoldRows, contiguous_folds
from gspool.evaluation.neighbours import Neighbours, nearest_neighbours
from gspool.evaluation.protocols import PROTOCOLS, Protocol, ProtocolReport, run_protocol
from gspool.evaluation.retrieval import RetrievalMetrics, retrieval_metrics
from gspool.evaluation.zero_shot import ZeroShotPrediction, zero_shot_prediction

__all__ = [
    "PROTOCOLS",
    "Combination",
    "FairAverage",
    "Fold",
    "FoldRows",
    "MeanStd",
    "Neighbours",
    "Protocol",
    "ProtocolReport",
    "RetrievalMetrics",
    "RunResult",
    "ZeroShotPrediction",
    "concatenate_embeddings",
    "contiguous_folds",
    "fair_average",
    "mean_and_std",
    "nearest_neighbours",
    "retrieval_metrics",
    "run_protocol",
    "separate_average",
    "zero_shot_prediction",
]
