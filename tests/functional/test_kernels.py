"""The Triton kernels without a GPU: by Triton's interpreter, which must be switched on before Triton is loaded."""

from pathlib import Path

import pytest
import torch

from gspool.functional import gsp_pool, partial_transport
from interpreter import passes_by_the_interpreter

HERE = Path(__file__).parent


# Half a minute by itself; a busy machine may take many.
@pytest.mark.timeout(1800)
def test_kernels_by_the_interpreter():
    passes_by_the_interpreter(HERE / "interpreted_kernels.py")


def test_kernels_need_a_gpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"backend='triton' cannot run here: .*cpu.*use backend='torch' or 'auto'"):
        gsp_pool(torch.zeros(1, 4, 3), torch.zeros(2, 3), 0.3, 5.0, backend="triton")
    with pytest.raises(ValueError, match="need a CUDA device"):
        partial_transport(torch.zeros(1, 2, 4), 0.3, 5.0, backend="triton")


def test_auto_is_the_plain_version_on_the_cpu():
    tokens, prototypes = torch.randn(2, 6, 3), torch.randn(4, 3)
    auto = gsp_pool(tokens, prototypes, 0.3, 5.0)
    plain = gsp_pool(tokens, prototypes, 0.3, 5.0, backend="torch")
    assert auto.weights.equal(plain.weights)
