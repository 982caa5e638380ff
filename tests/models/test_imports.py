from __future__ import annotations

import subprocess
import sys

import pytest

import gspool.models

EXTRAS = ("huggingface_hub", "safetensors", "timm", "torchvision")


def run_without_extras(code: str) -> subprocess.CompletedProcess[str]:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r})); "
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False)


def test_the_swap_needs_torch_alone() -> None:
    done = run_without_extras("from gspool.models import Pixels, replace_pooling")
    assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_named_with_the_way_to_get_it() -> None:
    done = run_without_extras("from gspool.models import Embedder")
    assert "gspool.models.Embedder needs" in done.stderr
    assert "pip install 'gspool[train]'" in done.stderr


def test_public_names_are_there_and_others_are_not() -> None:
    for name in gspool.models.__all__:
        assert getattr(gspool.models, name) is not None
    assert dir(gspool.models) == gspool.models.__all__
    with pytest.raises(AttributeError, match="has no attribute 'Embeder'; it has Backbone"):
        gspool.models.Embeder  # noqa: B018
