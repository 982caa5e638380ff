"""What docs/evaluation.md shows can be done with the embedding model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from gspool import Embedder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"


def test_the_zero_shot_example_runs_with_an_embedder():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (block,) = (block for block in blocks if "zero_shot_prediction" in block)
    model = Embedder("small_cnn", pooling="gsp", dim=8, pooling_options={"prototypes": 4}).eval()
    given = {"model": model, "images": torch.rand(40, 3, 16, 16), "labels": torch.arange(40) // 4}
    exec(compile(block, PAGE.name, "exec"), given)
    assert given["result"].chance == pytest.approx(1 / 5)
