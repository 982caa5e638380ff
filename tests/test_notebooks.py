"""The notebooks of the documentation run from top to bottom, without a GPU and without a download."""

from __future__ import annotations

import json
import re
from pathlib import Path

import huggingface_hub.constants
import matplotlib.pyplot as plt
import nbformat
import pytest
import torch

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)


# NumPy speaks of an argument that tensors do not take, when matplotlib draws one.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:matplotlib")
@NOTEBOOKS
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    """In this process, where the libraries are imported already; the cells are plain Python."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    names: dict[str, object] = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, names)


@NOTEBOOKS
def test_what_is_committed_is_executed_small_and_of_no_machine(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < 400_000
    assert {*notebook.metadata} == {"kernelspec", "language_info"}
    assert not [cell for cell in notebook.cells if cell.metadata]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell.outputs]
    assert {"display_data", "execute_result"} & {output.output_type for output in outputs}, "has no picture"
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    texts = [output.get("text") or output.data.get("text/plain", "") for output in outputs]
    assert not re.search(r"/(home|root|tmp|usr|work)/|site-packages", json.dumps(texts))
