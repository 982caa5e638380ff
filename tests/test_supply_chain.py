"""What continuous integration installs and runs is pinned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def test_every_dependency_is_pinned_to_a_version_that_is_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
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
