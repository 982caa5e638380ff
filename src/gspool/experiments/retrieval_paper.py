"""The paper's values for the retrieval benchmarks, in percent: Tables 1 and 2, conventional protocol, layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

# The order of the columns below.
ORDER = ("sop", "inshop", "cub", "cars196")


class PaperValues(NamedTuple):
    """P@1 and MAP@R of the four models joined (512D), and of each by itself (128D), in percent."""

    p1_joined: float
    map_joined: float
    p1: float
    map: float


# Table 2, one line a row: P@1 and MAP@R at 512D, P@1 and MAP@R at 128D; SOP, In-shop, CUB, Cars196.
# DeLF's P@1 of 45.53 on SOP is what the paper prints.
_TABLE = """
c1 gap          69.29 40.40 65.15 36.50 80.11 50.32 75.83 46.42 63.32 23.49 56.34 19.37 78.01 22.87 65.61 16.06
xbm+c1 gap      76.54 48.58 73.22 44.55 87.76 57.53 85.26 54.40 65.56 25.65 57.48 20.27 83.55 27.53 72.17 18.98
xbm+c1 gsp      77.88 50.65 74.84 46.69 88.33 58.55 85.95 55.30 67.00 26.05 58.89 20.60 83.31 27.88 73.04 19.26
c2 gap          74.20 45.85 70.54 41.79 86.47 59.07 83.42 55.38 67.35 25.95 58.87 20.58 80.96 24.38 69.55 17.02
c2 gsp          74.91 46.81 71.43 42.84 86.90 60.01 83.57 55.94 68.85 27.12 60.42 21.52 82.83 26.25 71.40 18.31
c2 delf         74.59 46.54 45.53 42.47 86.65 59.20 83.51 55.36 68.66 27.06 59.85 21.42 81.85 24.77 69.95 17.32
c2 gemean       74.92 46.99 71.53 43.12 86.62 59.12 83.83 55.70 68.79 27.12 60.37 21.50 82.43 25.27 70.23 17.41
c2 gemean+gsp   75.32 47.69 71.93 43.71 86.94 59.98 84.35 56.34 69.11 27.56 60.81 21.84 83.62 26.98 72.38 19.05
c2 gmp          74.09 46.13 69.68 41.31 86.38 59.04 83.04 54.89 68.13 26.43 58.99 20.66 81.83 25.11 69.05 17.08
c2 gap+gmp      74.71 46.70 70.83 42.38 86.58 59.22 83.41 55.37 67.88 26.63 59.24 20.88 82.14 25.66 69.81 17.62
c2 gmp+gsp      75.08 47.12 71.18 42.80 86.79 59.43 83.86 55.76 68.47 27.49 60.19 21.69 82.54 26.30 71.03 18.24
ms gap          72.81 44.19 69.09 40.34 87.01 58.79 83.87 54.85 65.43 24.95 57.57 20.13 83.73 27.16 72.54 18.73
ms gsp          73.05 44.72 69.44 40.87 88.28 60.49 85.28 56.62 65.50 25.09 57.39 20.34 84.27 28.58 73.74 19.91
triplet gap     74.54 45.88 69.41 40.01 85.99 59.67 81.75 54.25 64.11 23.65 55.62 18.54 77.58 22.67 64.61 15.74
triplet gsp     75.59 47.35 70.65 41.38 86.75 60.85 82.74 55.54 66.09 24.80 57.12 19.38 78.93 23.44 65.81 16.14
pnca gap        75.18 47.11 72.15 43.57 87.26 57.43 84.86 54.41 65.74 25.27 58.19 20.63 82.33 26.21 70.75 18.61
pnca gsp        75.68 47.74 72.37 43.95 87.35 57.65 85.13 54.68 65.80 25.48 58.20 20.75 82.70 26.93 71.55 19.20
pnca delf       75.29 47.44 72.05 43.62 87.19 57.44 84.55 54.13 65.42 25.31 57.98 20.51 82.37 26.63 71.06 18.81
pnca gemean     75.64 47.82 72.75 44.43 87.63 57.88 85.48 55.14 66.33 25.74 58.52 20.71 83.83 27.44 72.14 19.16
pnca gemean+gsp 75.89 48.17 72.91 44.61 87.64 58.12 85.58 55.25 67.39 26.19 59.39 21.31 83.09 27.96 71.95 19.74
pnca gmp        74.43 46.33 70.80 42.24 86.94 56.79 84.53 53.86 65.74 25.36 57.61 20.33 83.06 26.96 71.19 18.92
pnca gap+gmp    75.19 47.26 71.97 43.55 87.21 57.34 84.95 54.42 65.91 25.56 57.92 20.68 82.92 26.92 71.33 18.95
pnca gmp+gsp    75.41 47.50 72.10 43.73 87.43 57.68 85.10 54.70 66.14 25.85 58.12 20.96 83.46 27.12 72.04 19.38
panchor gap     76.48 48.08 73.50 44.33 88.02 58.02 85.83 54.98 68.04 26.20 59.91 20.94 85.26 27.14 75.08 19.15
panchor gsp     77.13 49.05 74.07 45.07 88.10 58.44 85.97 55.34 68.40 26.59 60.80 21.44 86.46 28.43 75.88 19.90
"""
# The standard deviations printed under them.
_DEVIATIONS = """
c1 gap          0.11 0.15 0.10 0.11 0.19 0.14 0.14 0.13 0.57 0.31 0.35 0.29 0.38 0.33 0.59 0.14
xbm+c1 gap      0.32 0.47 0.48 0.57 0.26 0.41 0.37 0.45 0.48 0.24 0.41 0.19 0.35 0.22 0.30 0.17
xbm+c1 gsp      0.18 0.28 0.19 0.28 0.19 0.29 0.21 0.21 0.49 0.15 0.49 0.16 0.22 0.23 0.39 0.19
c2 gap          0.23 0.31 0.19 0.26 0.15 0.21 0.12 0.13 0.50 0.21 0.36 0.13 0.48 0.58 0.42 0.31
c2 gsp          0.12 0.17 0.11 0.14 0.17 0.29 0.18 0.17 0.41 0.27 0.36 0.16 0.27 0.34 0.27 0.22
c2 delf         0.15 0.19 0.18 0.17 0.16 0.22 0.09 0.12 0.32 0.18 0.18 0.16 0.41 0.38 0.38 0.25
c2 gemean       0.13 0.15 0.11 0.12 0.15 0.19 0.09 0.12 0.36 0.19 0.30 0.15 0.60 0.63 0.55 0.45
c2 gemean+gsp   0.08 0.13 0.10 0.13 0.15 0.21 0.19 0.14 0.49 0.18 0.34 0.19 0.36 0.31 0.28 0.22
c2 gmp          0.15 0.19 0.20 0.22 0.12 0.10 0.13 0.07 0.40 0.21 0.34 0.18 0.62 0.72 0.61 0.47
c2 gap+gmp      0.11 0.15 0.10 0.15 0.16 0.18 0.12 0.15 0.48 0.23 0.32 0.17 0.40 0.44 0.38 0.32
c2 gmp+gsp      0.10 0.17 0.15 0.18 0.16 0.28 0.15 0.19 0.58 0.36 0.41 0.35 0.46 0.43 0.48 0.29
ms gap          0.14 0.21 0.10 0.16 0.20 0.37 0.21 0.34 0.46 0.15 0.27 0.12 0.34 0.43 0.43 0.31
ms gsp          0.11 0.17 0.15 0.19 0.21 0.24 0.19 0.26 0.33 0.21 0.15 0.22 0.35 0.40 0.32 0.31
triplet gap     0.24 0.30 0.38 0.39 0.36 0.46 0.38 0.45 0.66 0.40 0.46 0.31 0.60 0.58 0.59 0.34
triplet gsp     0.23 0.32 0.20 0.22 0.27 0.47 0.33 0.46 0.52 0.33 0.42 0.25 0.30 0.29 0.35 0.21
pnca gap        0.15 0.16 0.06 0.08 0.14 0.14 0.08 0.10 0.51 0.23 0.36 0.20 0.25 0.22 0.18 0.08
pnca gsp        0.11 0.14 0.06 0.06 0.10 0.12 0.10 0.08 0.38 0.25 0.22 0.19 0.27 0.18 0.32 0.17
pnca delf       0.09 0.11 0.06 0.07 0.11 0.16 0.04 0.10 0.34 0.16 0.24 0.14 0.35 0.22 0.27 0.14
pnca gemean     0.09 0.09 0.07 0.06 0.10 0.13 0.14 0.12 0.33 0.20 0.39 0.20 0.29 0.15 0.28 0.12
pnca gemean+gsp 0.11 0.12 0.04 0.06 0.10 0.16 0.07 0.08 0.53 0.26 0.40 0.21 0.25 0.30 0.27 0.19
pnca gmp        0.08 0.08 0.07 0.08 0.13 0.13 0.08 0.09 0.51 0.29 0.38 0.29 0.33 0.27 0.25 0.15
pnca gap+gmp    0.09 0.11 0.04 0.06 0.14 0.15 0.09 0.10 0.35 0.26 0.37 0.20 0.41 0.36 0.22 0.19
pnca gmp+gsp    0.12 0.12 0.07 0.09 0.10 0.14 0.10 0.08 0.48 0.23 0.32 0.18 0.31 0.21 0.39 0.20
panchor gap     0.19 0.26 0.14 0.20 0.21 0.25 0.18 0.22 0.41 0.21 0.34 0.15 0.31 0.20 0.23 0.13
panchor gsp     0.16 0.22 0.13 0.17 0.11 0.14 0.06 0.13 0.45 0.25 0.31 0.17 0.39 0.33 0.25 0.20
"""


def paper_values(data: str, loss: str, pooling: str, of: Literal["mean", "deviation"] = "mean") -> PaperValues | None:
    """Return a row of Table 2, or its standard deviations; None where the paper has no such row.

    Example:
        >>> paper_values("cub", "c2", "gsp")
        PaperValues(p1_joined=68.85, map_joined=27.12, p1=60.42, map=21.52)
    """
    for row in map(str.split, (_TABLE if of == "mean" else _DEVIATIONS).strip().splitlines()):
        if row[:2] == [loss, pooling]:
            return PaperValues(*_of_data(data, row[2:]))
    return None


def _of_data(data: str, numbers: Sequence[str]) -> list[float]:
    """Return the numbers of one data set, of a line that has as many for each."""
    each = len(numbers) // len(ORDER)
    start = each * ORDER.index(data)
    return [float(number) for number in numbers[start : start + each]]


# Table 1, C2, MAP@R at 512D and 128D of each part alone; the rows without and with both parts are those of Table 2.
_ALONE = {
    "c2 gsp without zsr": "46.78 42.66  59.46 55.50  26.25 20.85  25.54 17.88",
    "c2 gsp mu 1": "46.60 42.55  59.38 55.43  26.49 21.08  25.54 17.67",
}


def component_values(data: str, variant: str) -> tuple[float, float]:
    """Return MAP@R at 512D and at 128D of a row of Table 1."""
    if variant in _ALONE:
        joined, single = _of_data(data, _ALONE[variant].split())
        return joined, single
    loss, pooling = variant.split()
    row = paper_values(data, loss, pooling)
    assert row is not None
    return row.map_joined, row.map


class ConventionalValues(NamedTuple):
    """R@1 and MAP@R of one 512D model, in percent (Supp. 1.1), and R@2, R@4, R@8 where the paper has them."""

    r1: float
    map: float
    further: tuple[float, ...] = ()


# The paper adds max pooling to both layers in this protocol: these are the rows of GAP+GMP and of GMP+GSP.
_CONVENTIONAL = {
    ("bninception", "gap+gmp"): "79.29 52.59  90.16 61.39  64.32 23.59  77.63 21.67",
    ("bninception", "gmp+gsp"): "79.59 52.70  90.92 63.25  64.99 25.35  79.07 22.51",
    ("resnet50", "gap+gmp"): "81.44 55.66  91.56 64.00  66.68 25.38  82.83 25.34",
    ("resnet50", "gmp+gsp"): "81.54 55.91  91.75 64.43  66.63 25.51  82.60 25.76",
}
# R@2, R@4, R@8 of XBM+GSP on CUB with ResNet50; other sets are printed at other ranks than ours, or not at all.
_FURTHER = {("cub", "resnet50", "gmp+gsp"): (77.43, 85.26, 91.02)}


def conventional_values(data: str, backbone: str, loss: str, pooling: str) -> ConventionalValues | None:
    """Return a row of the conventional protocol; None where the paper has no such row. Its only loss is C1 with XBM."""
    network = backbone.rpartition("/")[2]
    line = _CONVENTIONAL.get((network, pooling))
    if line is None or loss != "xbm+c1":
        return None
    recall, precision = _of_data(data, line.split())
    return ConventionalValues(recall, precision, _FURTHER.get((data, network, pooling), ()))


# Supp. "Evaluation of Other Pooling Alternatives", CUB, MAP@R at 128D: contrastive, ProxyNCA++.
_POOLINGS = {
    "cbam": (18.45, 18.21),
    "crow": (20.88, 20.42),
    "delf": (21.42, 20.51),
    "gemax": (18.85, 17.83),
    "gemean": (21.50, 20.71),
    "gsop": (20.52, 15.72),
    "otp 8x16": (15.19, 13.57),
    "otp 64x128": (20.88, 20.48),
    "solar": (19.89, 20.14),
    "tfm 1 layer": (17.82, 19.13),
    "tfm 2 layers": (17.16, 18.13),
    "tfm 4 layers": (16.91, 18.22),
    "tfm 8 layers": (16.31, 17.47),
    "tsmk": (21.01, 20.23),
    "vlad 8x16": (15.19, 13.08),
    "vlad 64x128": (16.67, 16.53),
    "weldon": (20.67, 20.31),
    "gap": (20.58, 20.63),
    "gmp": (20.66, 20.33),
    "gap+gmp": (20.88, 20.68),
    "gsp": (21.52, 20.75),
}


def layer_value(loss: str, pooling: str, setting: str = "") -> float | None:
    """Return a pooling layer's MAP@R on CUB, in percent; None where the paper has no such row."""
    values = _POOLINGS.get(f"{pooling} {setting}".strip())
    return None if values is None or loss not in ("c2", "pnca") else values[("c2", "pnca").index(loss)]


def paper_gain(data: str, loss: str, pooling: str, setting: str = "") -> float | None:
    """Return by how much the paper's row exceeds its GAP: of Table 2 if it has one, otherwise of the layers on CUB.

    Example:
        >>> round(paper_gain("cub", "c2", "gsp"), 2), round(paper_gain("cub", "c2", "otp", "8x16"), 2)
        (0.94, -5.39)
    """
    row, gap = paper_values(data, loss, pooling), paper_values(data, loss, "gap")
    if row is not None and gap is not None:
        return None if setting else row.map - gap.map
    layer, base = layer_value(loss, pooling, setting), layer_value(loss, "gap")
    return None if data != "cub" or layer is None or base is None else layer - base
