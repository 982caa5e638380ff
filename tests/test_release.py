"""What a release declares agrees with itself and with the source, and what builds it is pinned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gspool

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_version_and_date_are_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version, date = re.findall(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert gspool.__version__ == citation["version"] == version
    assert str(citation["date-released"]) == date
    assert f"| {'.'.join(version.split('.')[:2])}.x | yes |" in (ROOT / "SECURITY.md").read_text()


def test_classifiers_list_the_pythons_that_are_tested():
    listed = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(PYPROJECT["project"]["classifiers"]))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert listed == workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert PYPROJECT["project"]["requires-python"] == f">={listed[0]}"


def test_the_wheel_has_the_package_and_nothing_else():
    settings = PYPROJECT["tool"]["setuptools"]
    assert settings["packages"]["find"] == {"where": ["src"]}
    assert [path.name for path in (ROOT / "src").iterdir() if path.suffix != ".egg-info"] == ["gspool"]
    files = [
        path for path in (ROOT / "src" / "gspool").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert not [path for path in files if re.match(r"tests?$|test_|conftest", path.stem)]
    # A file that is not Python is left out of the wheel unless it is declared.
    assert [path.name for path in files if path.suffix != ".py"] == settings["package-data"]["gspool"]


def test_only_the_job_that_publishes_may_ask_for_an_identity():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in workflow["jobs"]["build"]
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert not [step for step in workflow["jobs"]["publish"]["steps"] if "run" in step]


def test_every_dependency_is_pinned_to_a_version_that_is_allowed():
    project = PYPROJECT["project"]
    lines = [line for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pinned = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    for requirement in map(Requirement, asked):
        if requirement.name != "gspool":
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


def test_actions_are_pinned_by_the_hash_of_a_commit():
    used = [
        action
        for workflow in (ROOT / ".github" / "workflows").glob("*.yml")
        for action in re.findall(r"uses:\s*(\S+)", workflow.read_text())
    ]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)
