"""The kernels of Adam, line by line in Python: `test_resident_kernels.py` runs this with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch

from experiments.resident.folded_steps import assert_alike, learned


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_kernels_step_as_the_optimiser_does(kind: type[torch.optim.Optimizer], clip: float) -> None:
    ours = learned(kind, clip, together=True, launches=True)
    theirs = learned(kind, clip, together=False)
    assert_alike(ours, theirs)
