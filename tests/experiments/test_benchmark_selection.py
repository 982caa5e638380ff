"""What GSP selects before training: the measure itself, on features whose answer is known."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gspool.experiments.benchmark.selection import EPSILONS, correlation, selection_rows
from gspool.experiments.benchmark.selection_table import rendered


def test_correlation_is_that_of_every_image_averaged() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(5, 9), torch.randn(5, 9)
    expected = sum(float(torch.corrcoef(torch.stack([a, b]))[0, 1]) for a, b in zip(first, second, strict=True)) / 5
    assert correlation(first, second) == pytest.approx(expected, abs=1e-5)


def test_pooled_vectors_lead_to_what_dominates_the_average() -> None:
    torch.manual_seed(0)
    # Half of an image is one long feature of its own direction, the other half short noise.
    foreground = torch.nn.functional.normalize(torch.randn(12, 1, 16), dim=-1)
    tokens = torch.cat([20 * foreground.expand(12, 8, 16), torch.randn(12, 8, 16)], dim=1)
    features = tokens.transpose(1, 2).unflatten(2, (4, 4))
    rows = selection_rows(features, tokens, prototypes=4)
    assert len(rows) == 2 * len(EPSILONS)
    entropies = [row["entropy"] for row in rows[: len(EPSILONS)]]
    assert entropies == sorted(entropies, reverse=True)
    assert all(abs(row["correlation_with_length"]) <= 1 for row in rows)
    assert "pooled vectors" in rendered({"rows": rows, "length_with_nearness": 0.5})


def test_the_command_on_the_page_warns_of_nothing() -> None:
    words = ["-W", "error::RuntimeWarning", "-m", "gspool.experiments.benchmark.selection", "--help"]
    made = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
