"""The rows of the collage tables: every pooling layer of the paper in the sizes it names, and the paper's figures."""

from __future__ import annotations

from typing import Any, NamedTuple

from gspool.experiments.collage.recipe import ZSR, Training
from gspool.experiments.collage.search import LOSSES


class Row(NamedTuple):
    """A line of the table: its name there, the layer, and the paper's MAP@R in percent with C2 and with PNCA.

    ``paper`` is None where the paper has no such row.
    """

    name: str
    pooling: str
    changes: dict[str, Any]
    paper: dict[str, float] | None = None


def _paper(c2: float, pnca: float) -> dict[str, float]:
    return {"c2": c2, "pnca": pnca}


_LARGE = {"dim": 8192, "options": {"prototypes": 64}}
# Table "Evaluation of feature pooling methods", its first two columns. The paper's GSP is with the regularisation.
ROWS = (
    Row("CBAM", "cbam", {}, _paper(7.87, 10.99)),
    Row("CroW", "crow", {}, _paper(10.09, 11.48)),
    Row("DeLF", "delf", {}, _paper(11.44, 24.83)),
    # Its ridge of 1 is that of descriptors of length 1; beside those of this network, of length 20, it is nothing.
    Row("GeMax", "gemax", {"features": "unit"}, _paper(7.04, 7.83)),
    Row("GeMax, tokens as they are", "gemax", {}),
    Row("GeMean", "gemean", {}, _paper(10.97, 10.60)),
    Row("GSoP", "gsop", {}, _paper(11.15, 17.73)),
    Row("OTP-(8x16)", "otp", {}, _paper(7.02, 11.55)),
    Row("OTP-(64x128)", "otp", _LARGE, _paper(7.57, 11.79)),
    Row("SOLAR", "solar", {}, _paper(17.30, 20.36)),
    Row("TFM-1", "tfm", {"options": {"layers": 1}}, _paper(8.84, 10.83)),
    Row("TFM-2", "tfm", {"options": {"layers": 2}}, _paper(16.48, 21.00)),
    Row("TFM-4", "tfm", {"options": {"layers": 4}}, _paper(18.51, 21.56)),
    Row("TFM-8", "tfm", {"options": {"layers": 8}}, _paper(18.18, 19.68)),
    Row("T-SMK", "tsmk", {}, _paper(9.21, 13.15)),
    Row("VLAD-(8x16)", "vlad", {}, _paper(21.73, 19.68)),
    Row("VLAD-(64x128)", "vlad", _LARGE, _paper(22.52, 21.15)),
    Row("WELDON", "weldon", {}, _paper(13.81, 20.38)),
    Row("GAP", "gap", {}, _paper(8.09, 10.68)),
    Row("GMP", "gmp", {}, _paper(9.53, 11.25)),
    Row("GMP+GAP", "gap+gmp", {}, _paper(10.01, 11.85)),
    Row("GMP+GSP", "gmp+gsp", {}),
    Row("GeMean+GSP", "gemean+gsp", {}),
    Row("GSP", "gsp", {}),
    Row("GSP+ZSR", "gsp", {"zsr": ZSR}, _paper(22.68, 27.61)),
)
# Rows that are trained with the backbone as well, and on the objects alone.
FINE_TUNED = ("GAP", "GMP", "GSP", "GSP+ZSR")
DISTILLED = ("GAP", "GSP")
# "1e-3 over-fits a trainable backbone within two epochs": this one is ours.
FINE_TUNING = {"backbone": "fine-tuned", "lr": 1e-4}


def find_row(name: str) -> Row:
    """Give a row by its name.

    Example:
        >>> find_row("GSP").pooling
        'gsp'
    """
    return next(row for row in ROWS if row.name == name)


def table_trainings(seeds: tuple[int, ...], **usual: Any) -> dict[tuple[str, str, int], Training]:
    """Give the trainings of the frozen table by (row, loss, seed).

    Example:
        >>> len(table_trainings((0, 1, 2)))
        150
    """
    return {
        (row.name, loss, seed): Training(row.pooling, loss, seed, **{**usual, **row.changes})
        for row in ROWS
        for seed in seeds
        for loss in LOSSES
    }
