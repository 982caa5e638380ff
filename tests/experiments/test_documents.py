"""What a newcomer copies from the first pages runs, and what the pages point to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["README.md", "docs/index.md"]
LINKED = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *sorted(f"docs/{page.name}" for page in DOCS.glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs_from_top_to_bottom(project: Path, page: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (project / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {})


@pytest.mark.parametrize("page", LINKED)
def test_every_link_to_a_file_leads_to_one(project: Path, page: str) -> None:
    path = project / page
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    broken = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert broken == []


def test_the_two_commands_are_in_the_readme_and_in_the_makefile(project: Path) -> None:
    readme, makefile = (project / "README.md").read_text(), (project / "Makefile").read_text()
    for command in ("train", "test"):
        assert f"make {command}" in readme
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)
    assert "make test" in (project / ".ci" / "run").read_text()
