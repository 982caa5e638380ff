from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def repeatable() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
