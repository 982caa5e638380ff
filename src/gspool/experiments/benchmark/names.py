"""What results on the benchmarks are called."""

from __future__ import annotations

from gspool.experiments.result_names import name_beside

DATA, BACKBONE = "cub", "keras/resnet50"


def result_name(study: str, data: str = DATA, backbone: str = BACKBONE) -> str:
    """Name the result of a study; what is usual is not named.

    Example:
        >>> result_name("mu"), result_name("mu", "cars196", "bninception")
        ('mu', 'mu_cars196_bninception')
    """
    return name_beside(study, (data, backbone), (DATA, BACKBONE))


def benchmark_name(data: str, protocol: str, backbone: str = BACKBONE) -> str:
    """Name the result of a benchmark, with its data set always and its protocol where it is not the fair one.

    Example:
        >>> benchmark_name("cub", "fair"), benchmark_name("cub", "conventional", "bninception")
        ('benchmark_cub', 'benchmark_cub_conventional_bninception')
    """
    study = f"benchmark_{data}" if protocol == "fair" else f"benchmark_{data}_{protocol}"
    return result_name(study, backbone=backbone)
