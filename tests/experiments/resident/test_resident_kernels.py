"""The kernels of resident training without a GPU: by Triton's interpreter, which must be on before Triton is loaded."""

from pathlib import Path

import pytest

from interpreter import passes_by_the_interpreter

HERE = Path(__file__).parent


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("interpreted_*.py")))
def test_by_the_interpreter(name: str) -> None:
    passes_by_the_interpreter(HERE / name)
