"""A corpus embedded on a real Ray cluster on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from gspool.executor import Failure
from gspool.search import embed_corpus
from gspool.search.corpus import stream
from search.corpus_files import rows_of

make_worker = stream.make_worker


def mortal_worker(model, *options):
    """A worker whose process dies in its first task, as if its machine had gone."""
    embed = make_worker(model, *options)

    def work(images):
        mark = Path(images[0].path).parents[2] / "died"
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return embed(images)

    return work


def test_a_cluster_writes_the_file_that_one_process_writes_although_a_worker_dies(
    small_model, pictures, tmp_path, monkeypatch
):
    import ray

    # The workers of a cluster cannot import the tests.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    # One batch per task, so that fifteen pictures are spread over the workers.
    monkeypatch.setattr(stream, "BATCHES_PER_TASK", 1)
    (pictures / "bee" / "broken.png").write_bytes(b"hello")
    alone, together = tmp_path / "alone.parquet", tmp_path / "together.parquet"
    expected = embed_corpus(small_model, pictures, alone, batch_size=2, workers=1, device="cpu")
    monkeypatch.setattr(stream, "make_worker", mortal_worker)
    result = embed_corpus(small_model, pictures, together, batch_size=2, workers=1, ray="local", actors=2)
    assert (tmp_path / "died").exists()
    assert result[1:5] == expected[1:5] == (15, 15, 0, 1)
    assert result.bad_list is not None
    assert "broken.png" in result.bad_list.read_text()
    for ours, theirs in zip(rows_of(together), rows_of(alone), strict=True):
        # A broken picture moves the bounds of the batches behind it, and with them the rounding.
        np.testing.assert_allclose(ours.pop("vector"), theirs.pop("vector"), rtol=1e-5, atol=1e-6)
        assert ours == theirs
    assert embed_corpus(small_model, pictures, together, ray="local").skipped == 15
    assert next(small_model.parameters()).device.type == "cpu"


def test_a_mistake_of_a_worker_is_raised_here(small_model, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "run_tasks", lambda *_, **__: iter([(None, Failure("no such thing"))]))
    with pytest.raises(RuntimeError, match="no such thing"):
        embed_corpus(small_model, pictures, tmp_path / "v.lance", workers=1, ray="local", actors=1)


def test_without_a_cluster_it_says_how_to_start_one(small_model, pictures, tmp_path):
    # A port where nothing listens: "auto" would find the cluster of another test that runs beside this one.
    with pytest.raises(ValueError, match=r"no Ray cluster at '127.0.0.1:1'.*ray start --head.*local"):
        embed_corpus(small_model, pictures, tmp_path / "vectors.parquet", ray="127.0.0.1:1")


def test_without_ray_it_says_what_to_install(small_model, pictures, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install \"gspool\[ray\]\""):
        embed_corpus(small_model, pictures, tmp_path / "vectors.parquet", ray="local")
