"""Run a file of tests by Triton's interpreter, which must be switched on before Triton is loaded."""

import os
import subprocess
import sys
from pathlib import Path


def passes_by_the_interpreter(path: Path) -> None:
    """Run the tests of a file in a process of its own, and fail with what it printed where one of them fails."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    paths = (str(Path(__file__).parent), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(each for each in paths if each)
    command = [sys.executable, "-m", "pytest", str(path), "-p", "no:cacheprovider", "-o", "addopts="]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
