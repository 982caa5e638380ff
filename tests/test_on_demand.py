"""dir(), help(), completion and `import *` show every name that can be imported, whatever is installed."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import gspool
import gspool.models
import gspool.search

TRAIN = ("PIL", "huggingface_hub", "jsonargparse", "numpy", "safetensors", "yaml")
SEARCH = ("filelock", "lancedb", "pyarrow")
PACKAGES = ("gspool", "gspool.models", "gspool.search")

# A library is missing to an import and to find_spec alike where sys.modules holds None for it.
LOOK = """
import sys
sys.modules.update(dict.fromkeys({missing!r}))
import inspect, pydoc, rlcompleter
from importlib import import_module
for package in {packages!r}:
    module = import_module(package)
    inspect.getmembers(module)
    pydoc.render_doc(module)
    completed = rlcompleter.Completer({{"module": module}}).attr_matches("module.")
    shown = {{f"module.{{name}}" for name in dir(module) if not name.startswith("_")}}
    assert shown <= {{each.rstrip("()") for each in completed}}, (shown, completed)
    exec(f"from {{package}} import *", {{}})
    for name in {names!r}[package]:
        if name not in dir(module):
            try:
                getattr(module, name)
            except ImportError as error:
                assert "pip install" in str(error), error
                print(package, name)
            else:
                raise AssertionError(f"{{package}}.{{name}} can be imported and is not shown")
"""


def hidden_without(*missing: str) -> set[str]:
    """Return the names that are not shown where libraries are missing; all others must be importable."""
    names = {
        "gspool": [*gspool._HOME],
        "gspool.models": [*gspool.models._HOME],
        "gspool.search": [*gspool.search._HOME],
    }
    code = LOOK.format(missing=missing, packages=PACKAGES, names=names)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {line.replace(" ", ".") for line in done.stdout.splitlines()}


def test_with_torch_alone_the_layer_is_shown_and_the_system_around_it_is_not() -> None:
    hidden = hidden_without(*TRAIN, *SEARCH)
    assert {"gspool.Embedder", "gspool.data", "gspool.training", "gspool.models.Embedder"} <= hidden
    assert not hidden & {"gspool.GSP", "gspool.ZSRLoss", "gspool.replace_pooling", "gspool.evaluation", "gspool.bench"}


def test_without_a_library_of_the_index_the_model_is_shown_and_the_index_is_not() -> None:
    hidden = hidden_without("lancedb")
    assert {"gspool.search.embed_corpus", "gspool.search.open_index"} <= hidden
    assert all(name.startswith("gspool.search.") for name in hidden)
    assert not hidden & {"gspool.search.load_model", "gspool.search.explain"}


def test_with_everything_installed_every_name_is_shown() -> None:
    for package in PACKAGES:
        module = import_module(package)
        assert sorted(module._HOME) == dir(module)
        assert all(hasattr(module, name) for name in module._HOME)
    assert sorted(gspool._HOME) == dir(gspool) == gspool.__all__


def test_a_wrong_name_is_refused_with_the_right_ones() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'GPS'.*GSP"):
        gspool.GPS  # noqa: B018


def test_type_checkers_see_no_getattr_of_a_module() -> None:
    # To them a module that has one has every name there is, so that `from gspool import Embeder` would pass.
    sources = {path: path.read_text(encoding="utf-8") for path in Path(gspool.__file__).parent.rglob("*.py")}
    trees = {path: ast.parse(source) for path, source in sources.items() if "def __getattr__" in source}
    shown = [
        path for path, tree in trees.items() if any(getattr(each, "name", "") == "__getattr__" for each in tree.body)
    ]
    assert shown == []
    hidden = [path for path, tree in trees.items() if _hides_getattr(tree)]
    assert {path.parent.name for path in hidden} == {"gspool", "models", "search"}


def _hides_getattr(tree: ast.Module) -> bool:
    guards = [each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "not TYPE_CHECKING"]
    return any(getattr(each, "name", "") == "__getattr__" for guard in guards for each in guard.body)
