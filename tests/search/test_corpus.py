"""A corpus is embedded picture by picture, survives interruptions, and names what it cannot read."""

from __future__ import annotations

import csv
import os
import threading
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from gspool.data.batches import read_ahead
from gspool.search import Limits, embed_corpus
from gspool.search import corpus as embed_module
from gspool.search.corpus import stream
from gspool.search.corpus.sources import list_images
from gspool.search.index import open_index
from gspool.search.index.table import LanceWriter
from search.corpus_files import KINDS, draw_picture, interrupt_batches, rows_of


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_a_plain_loop(kind, small_model, pictures, tmp_path):
    draw_picture(pictures / "loose.png", 7, size=(90, 70))
    out = tmp_path / f"vectors.{kind}"
    result = embed_corpus(small_model, pictures, out, batch_size=4, workers=3, precision="float32")
    assert (result.rows, result.embedded, result.skipped, result.bad, result.bad_list) == (16, 16, 0, 0, None)
    rows = rows_of(out)
    assert [(row["path"], row["label"]) for row in rows] == [image[:2] for image in list_images([pictures])]
    assert [row["row"] for row in rows] == [*range(16)]
    assert (rows[-1]["width"], rows[-1]["height"]) == (90, 70)
    for row in rows:
        status = os.stat(row["path"])
        assert (row["size"], row["modified"], row["source"]) == (status.st_size, status.st_mtime_ns, str(pictures))
        image = small_model.pixels.transform()(Image.open(row["path"]).convert("RGB"))
        with torch.no_grad():
            expected = small_model(image[None])[0]
        torch.testing.assert_close(torch.tensor(row["vector"]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_goes_on_in_its_own_precision(kind, small_model, pictures, tmp_path, monkeypatch):
    out = tmp_path / f"vectors.{kind}"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    embed_corpus(small_model, pictures / "bee", out)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    again = embed_corpus(small_model, pictures, out)
    assert again.skipped > 0
    assert again.embedded > 0
    assert open_index(out).settings.precision == "bfloat16"
    embed_corpus(small_model, pictures, tmp_path / f"other.{kind}")
    assert open_index(tmp_path / f"other.{kind}").settings.precision == "float32"


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_goes_on_to_the_very_same_file(kind, small_model, pictures, tmp_path, monkeypatch):
    (pictures / "bee" / "broken.png").write_bytes(b"hello")
    whole = tmp_path / f"whole.{kind}"
    embed_corpus(small_model, pictures, whole, batch_size=4)
    monkeypatch.setattr(embed_module, "SECONDS_AT_ONCE", 0.0)
    interrupt_batches(monkeypatch, 3, 4)
    broken = tmp_path / f"broken.{kind}"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            embed_corpus(small_model, pictures, broken, batch_size=4)
    result = embed_corpus(small_model, pictures, broken, batch_size=4)
    assert (result.embedded, result.skipped, result.bad) == (7, 8, 1)
    assert rows_of(broken) == rows_of(whole)
    assert _bad(result.bad_list) == _bad(tmp_path / f"whole.{kind}.bad.csv")
    # Nothing is left to do, and nothing changes.
    before = rows_of(broken)
    again = embed_corpus(small_model, pictures, broken, batch_size=4)
    assert (again.embedded, again.skipped) == (0, 15)
    assert rows_of(broken) == before


def _bad(path) -> list[list[str]]:
    with path.open(newline="") as file:
        return [*csv.reader(file)]


def test_bad_pictures_are_listed_left_out_and_tried_again(small_model, pictures, tmp_path):
    (pictures / "ant" / "empty.jpg").touch()
    (pictures / "bee" / "text.png").write_text("hello")
    content = (pictures / "cat" / "0.png").read_bytes()
    (pictures / "cat" / "half.png").write_bytes(content[: len(content) // 2])
    (tmp_path / "gone.csv").write_text("path\nnowhere.png\n")
    draw_picture(pictures / "large.png", 1, size=(300, 300))
    limits = Limits(max_pixels=80_000)
    sources = [pictures, tmp_path / "gone.csv"]
    result = embed_corpus(small_model, sources, tmp_path / "v.npz", batch_size=4, limits=limits)
    assert (result.embedded, result.bad, result.rows) == (15, 5, 15)
    lines = _bad(result.bad_list)
    assert lines[0] == ["path", "reason"]
    assert {os.path.basename(path): reason.split(" (")[0] for path, reason in lines[1:]} == {
        "large.png": "300 x 300 pixels, at most 80,000 in all are read; make it smaller",
        "empty.jpg": "the file is empty",
        "text.png": "the content is not one of JPEG, PNG, WEBP, GIF, BMP",
        "half.png": "damaged or unreadable",
        "nowhere.png": "there is no such file",
    }
    (pictures / "cat" / "half.png").write_bytes(content)
    better = embed_corpus(small_model, sources, tmp_path / "v.npz", batch_size=4)
    assert (better.embedded, better.skipped, better.bad) == (2, 15, 3)
    assert len(_bad(better.bad_list)) == 4


def test_a_name_that_is_no_text_is_listed(small_model, pictures, tmp_path):
    name = os.fsencode(pictures / "ant") + b"/\xff\xfe.png"
    with open(name, "wb") as file:
        file.write((pictures / "ant" / "0.png").read_bytes())
    result = embed_corpus(small_model, pictures, tmp_path / "v.parquet")
    assert (result.embedded, result.bad) == (15, 1)
    assert "not UTF-8" in _bad(result.bad_list)[1][1]


def test_a_picture_that_is_named_twice_is_embedded_once(small_model, pictures, tmp_path):
    result = embed_corpus(small_model, [pictures, pictures / "ant", f"{pictures}/*/1.png"], tmp_path / "v.lance")
    assert (result.embedded, result.rows, result.skipped) == (15, 15, 8)


def test_vectors_leave_memory_as_they_come(small_model, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(embed_module, "ROWS_AT_ONCE", 4)
    sizes = []
    append = LanceWriter.append
    monkeypatch.setattr(LanceWriter, "append", lambda self, *rows: (sizes.append(len(rows[0])), append(self, *rows)))
    embed_corpus(small_model, pictures, tmp_path / "v.parquet", batch_size=2)
    assert sizes == [4, 4, 4, 3]


def test_a_cluster_writes_the_file_that_one_process_writes(small_model, pictures, tmp_path, monkeypatch, one_thread):
    """On a real Ray cluster of this machine; what it does about workers that die is a test of the executor."""
    monkeypatch.setattr(stream, "BATCHES_PER_TASK", 1)
    (pictures / "bee" / "broken.png").write_bytes(b"hello")
    alone, together = tmp_path / "alone.parquet", tmp_path / "together.parquet"
    expected = embed_corpus(small_model, pictures, alone, batch_size=2, workers=1, device="cpu")
    result = embed_corpus(small_model, pictures, together, batch_size=2, workers=1, ray="local", actors=1)
    assert result[1:5] == expected[1:5] == (15, 15, 0, 1)
    assert _bad(result.bad_list) == _bad(expected.bad_list)
    for ours, theirs in zip(rows_of(together), rows_of(alone), strict=True):
        # A broken picture moves the bounds of the batches behind it, and with them the rounding.
        np.testing.assert_allclose(ours.pop("vector"), theirs.pop("vector"), rtol=1e-5, atol=1e-6)
        assert ours == theirs
    assert next(small_model.parameters()).device.type == "cpu"


def test_a_mistake_of_a_worker_is_raised_here(small_model, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "run_tasks", lambda *_, **__: iter([(None, stream.Failure("no such thing"))]))
    with pytest.raises(RuntimeError, match="no such thing"):
        embed_corpus(small_model, pictures, tmp_path / "v.lance", workers=1, ray="local", actors=1)


def test_wrong_sources_cost_no_time_and_leave_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        embed_corpus("no/such/model", tmp_path / "nowhere", tmp_path / "v.lance")
    with pytest.raises(ValueError, match="batch_size"):
        embed_corpus("no/such/model", tmp_path, tmp_path / "v.lance", batch_size=0)
    for name, words in (("v.txt", r"written to a \.lance"), ("my vectors.lance", "give it another name")):
        with pytest.raises(ValueError, match=words):
            embed_corpus("no/such/model", tmp_path, tmp_path / name)
    assert [*tmp_path.iterdir()] == []


def test_decoding_stays_only_a_little_ahead(small_model, pictures):
    asked = []

    def watched():
        for listed in list_images([pictures]):
            asked.append(listed)
            yield listed

    ahead = read_ahead(watched(), partial(stream.decode_one, model=small_model), threads=2, ahead=3)
    first = next(ahead)
    assert len(asked) == 4
    decoded = [first, *ahead]
    assert [picture.record.path for picture in decoded] == [image.path for image in list_images([pictures])]


def test_leaving_early_stops_the_threads(small_model, pictures):
    ahead = read_ahead(list_images([pictures]), partial(stream.decode_one, model=small_model), 2, ahead=5)
    next(ahead)
    ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read")]
