"""The kernels of resident training without a GPU: by Triton's interpreter, which must be on before Triton is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("interpreted_*.py")))
def test_by_the_interpreter(name: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    paths = (str(HERE.parent.parent), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    command = [sys.executable, "-m", "pytest", str(HERE / name), "-p", "no:cacheprovider", "-o", "addopts="]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
