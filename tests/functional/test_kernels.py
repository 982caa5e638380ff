"""The Triton kernels without a GPU: by Triton's interpreter, which must be switched on before Triton is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gspool.functional import gsp_pool, partial_transport

TESTS = Path(__file__).parents[1]


# Half a minute by itself; a busy machine may take many.
@pytest.mark.timeout(1800)
def test_kernels_by_the_interpreter():
    paths = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    file = TESTS / "functional" / "interpreted_kernels.py"
    command = [sys.executable, "-m", "pytest", str(file), "-p", "no:cacheprovider", "-o", "addopts="]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


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
