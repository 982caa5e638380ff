"""What a reader copies from the pages on export, sharing and sentences runs from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "leaves"),
    [
        ("export.md", ["letters.onnx", "letters.pt2"]),
        ("sharing.md", ["share/letters/README.md", "share/letters/model.safetensors"]),
        ("sentence_transformers.md", ["my-sentences/1_GSPPooling/model.safetensors"]),
    ],
)
def test_the_python_of_a_page_runs(
    page: str, leaves: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {})
    for name in leaves:
        assert (tmp_path / name).is_file()


@pytest.mark.parametrize("page", ["export.md", "sharing.md"])
def test_the_commands_of_a_page_are_known(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gspool.models.export_command import run

    with pytest.raises(SystemExit):
        run("export", ["--help"])
    help_page = capsys.readouterr().out
    commands = re.findall(r"^gspool export (.*?)(?:  #.*)?$", (DOCS / page).read_text(), re.MULTILINE)
    assert commands
    for option in re.findall(r"--\w+", " ".join(commands)):
        assert option in help_page
