"""Table 2 and the CUB columns of the pooling table: six losses, average pooling against GSP, on four benchmarks."""

from gspool.experiments.benchmark.experiment import EXPERIMENT

__all__ = ["EXPERIMENT"]
