"""The API page has every public name, and no other."""

from __future__ import annotations

import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import gspool

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^::: (\S+)$", PAGE, re.MULTILINE)
# A package with an __all__ makes promises; one without is the project's own affair.
PACKAGES = [
    name
    for name in ("gspool", *(f"gspool.{module.name}" for module in pkgutil.iter_modules(gspool.__path__)))
    if hasattr(import_module(name), "__all__")
]


def found(entry: str) -> Any:
    """Find what an entry of the page documents."""
    module, _, name = entry.rpartition(".")
    return getattr(import_module(module), name)


def test_the_packages_that_promise_names_are_known():
    assert {"gspool", "gspool.bench", "gspool.data", "gspool.evaluation", "gspool.search"} <= set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_on_the_page(package):
    module = import_module(package)
    documented = [found(entry) for entry in ENTRIES if entry.rpartition(".")[2] in module.__all__]
    missing = [
        name
        for name in module.__all__
        # A name may be documented where else it can be imported from: gspool.GSP is gspool.pooling.GSP.
        if not inspect.ismodule(getattr(module, name))
        and not any(each is getattr(module, name) for each in documented)
        and f"`{package}.{name}`" not in PAGE
    ]
    assert missing == [], f"docs/api.md does not list {', '.join(missing)} of {package}"


def test_every_entry_of_the_page_is_there_and_stands_there_once():
    assert len(ENTRIES) == len(set(ENTRIES))
    for entry in ENTRIES:
        assert found(entry) is not None
