"""`gspool bench` on a GPU: `pytest -m gpu tests/bench`."""

from __future__ import annotations

import pytest

from gspool.bench import Settings, measure
from gspool.bench.report import shown

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_both_backends_stand_beside_each_other_with_their_memory(dtype, channels_last, backward):
    shape = {"batch": 16, "channels": 256, "sizes": ((7, 7),), "channels_last": channels_last, "backward": backward}
    layers = ("gsp", "gmp+gsp", "gemean+gsp")
    measured = measure(Settings(layers=layers, backend="all", device="cuda", dtype=dtype, repeats=3, **shape))
    assert measured.refused == []
    plain, kernels = (
        next(row for row in measured.rows if row.title == f"gsp ({each})") for each in ("torch", "triton")
    )
    assert (plain.backend, kernels.backend) == ("torch", "triton")
    # Nothing of size B x M x N is kept by the kernels.
    assert 0 < kernels.alone.memory < plain.alone.memory
    assert "peak MiB" in shown(measured)


def test_a_training_step_holds_the_gradient_of_its_features():
    settings = Settings(layers=("gap",), batch=8, channels=512, sizes=((14, 14),), device="cuda", repeats=3)
    (gap,) = measure(settings).rows
    assert gap.alone.memory >= 8 * 512 * 14 * 14 * 4


def test_auto_says_what_it_has_chosen():
    settings = Settings(layers=("gsp",), batch=4, channels=64, device="cuda", repeats=3)
    assert "gsp (triton)" in shown(measure(settings))
