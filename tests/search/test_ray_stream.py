"""A corpus embedded by the actors of a real Ray cluster on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gspool.search import embed_corpus, ray_stream
from gspool.search.vector_files import read_pieces


def rows_of(path: Path) -> list[dict]:
    return [row for piece in read_pieces(path) for row in piece.to_pylist()]


@pytest.fixture
def small_errands(monkeypatch):
    """One batch an errand, so that fifteen pictures go round among the actors."""
    monkeypatch.setattr(ray_stream, "BATCHES_AT_ONCE", 1)
    torch.set_num_threads(1)


def test_a_cluster_writes_the_file_that_one_process_writes(small_model, pictures, tmp_path, small_errands):
    (pictures / "bee" / "broken.png").write_bytes(b"hello")
    alone, together = tmp_path / "alone.parquet", tmp_path / "together.parquet"
    expected = embed_corpus(small_model, pictures, alone, batch_size=2, workers=1, device="cpu")
    result = embed_corpus(small_model, pictures, together, batch_size=2, workers=1, ray="local", actors=2)
    assert result[1:5] == expected[1:5] == (15, 15, 0, 1)
    assert result.bad_list is not None
    assert "broken.png" in result.bad_list.read_text()
    for ours, theirs in zip(rows_of(together), rows_of(alone), strict=True):
        # A broken picture moves the bounds of the batches behind it, and with them the rounding.
        np.testing.assert_allclose(ours.pop("vector"), theirs.pop("vector"), rtol=1e-5, atol=1e-6)
        assert ours == theirs
    assert embed_corpus(small_model, pictures, together, ray="local").skipped == 15
    assert next(small_model.parameters()).device.type == "cpu"


class Mortal(ray_stream.Worker):
    """An actor whose process dies in its first errand, as if its machine had gone."""

    def embed(self, images, weights):
        mark = Path(images[0].path).parent.parent / "died"
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return super().embed(images, weights)


def test_work_of_an_actor_that_dies_is_done_again(small_model, pictures, tmp_path, small_errands, monkeypatch):
    import ray

    # Actors cannot import the tests.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(ray_stream, "Worker", Mortal)
    out = tmp_path / "vectors.parquet"
    result = embed_corpus(small_model, pictures, out, batch_size=4, workers=1, ray="local", actors=1)
    assert (pictures / "died").exists()
    assert (result.embedded, result.bad) == (15, 0)
    assert len({row["path"] for row in rows_of(out)}) == 15


def test_without_a_cluster_it_says_how_to_start_one(small_model, pictures, tmp_path):
    with pytest.raises(ValueError, match=r"no Ray cluster at 'auto'.*ray start --head.*local"):
        embed_corpus(small_model, pictures, tmp_path / "vectors.parquet", ray="auto")


def test_without_ray_it_says_what_to_install(small_model, pictures, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install \"gspool\[ray\]\""):
        embed_corpus(small_model, pictures, tmp_path / "vectors.parquet", ray="local")
