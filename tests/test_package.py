"""The public names of the package, and what they need."""

import pytest

import gspool


def test_every_public_name_is_there():
    for name in gspool.__all__:
        assert getattr(gspool, name)
    assert callable(gspool.pooling.create)
    assert callable(gspool.losses.create)
    assert callable(gspool.evaluation.retrieval_metrics)
    assert callable(gspool.Embedder.from_pretrained)
    assert set(gspool.__all__) <= set(dir(gspool))


def test_a_wrong_name_is_refused_with_the_right_ones():
    with pytest.raises(AttributeError, match=r"has no attribute 'GPS'.*GSP"):
        gspool.GPS  # noqa: B018


def test_a_missing_dependency_says_what_to_install(monkeypatch):
    def without(name, *rest):
        raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")

    monkeypatch.setattr(gspool.on_demand, "import_module", without)
    with pytest.raises(ImportError, match=r"gspool\.Embedder needs torchvision.*gspool\[train\]"):
        gspool.Embedder  # noqa: B018
