"""Pictures as queries: what the index says of their vectors, in order, the unreadable ones with the reason."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from gspool import Embedder
from gspool.search import embed_corpus, open_index, query, search_images
from gspool.search.corpus.sources import list_images
from gspool.search.explanation import figure
from gspool.search.explanation.figure import SCALE, draw_answers
from gspool.search.query import Answer
from search.corpus_files import draw_picture


@pytest.fixture
def index(small_model, pictures, tmp_path):
    embed_corpus(small_model, pictures, tmp_path / "vectors.lance")
    return open_index(tmp_path / "vectors.lance")


def test_answers_are_those_of_the_vectors_whatever_the_batch(small_model, pictures, index):
    paths = [image.path for image in list_images([pictures])]
    images = torch.stack([small_model.pixels.transform()(Image.open(path).convert("RGB")) for path in paths])
    with torch.no_grad():
        vectors = small_model(images).double()
    order = np.argsort(-(vectors @ vectors.T).numpy(), axis=1)
    for batch_size in (1, 4, 64):
        answers = [*search_images(small_model, index, pictures, k=4, batch_size=batch_size)]
        assert [answer.query for answer in answers] == paths
        assert [answer.label for answer in answers] == ["ant"] * 5 + ["bee"] * 5 + ["cat"] * 5
        assert [[hit.row for hit in answer.hits] for answer in answers] == order[:, :4].tolist()


def test_unreadable_queries_keep_their_place(small_model, pictures, index):
    (pictures / "bee" / "-.png").write_text("hello")
    answers = [*search_images(small_model, index, pictures, k=2, batch_size=4)]
    assert len(answers) == 16
    assert "not one of" in answers[5].problem
    assert answers[5].hits == []
    assert answers[6].hits[0].path == answers[6].query


def test_queries_of_the_corpus_are_embedded_again_only_if_they_changed(small_model, pictures, index, monkeypatch):
    embedded, embed = [], query.embed_batch

    def counted(model, images, precision):
        embedded.append(len(images))
        return embed(model, images, precision)

    monkeypatch.setattr(query, "embed_batch", counted)
    before = [*search_images(small_model, index, f"{pictures}/*/*.png", k=3, batch_size=8)]
    assert embedded == []
    assert [answer.label for answer in before] == ["ant"] * 5 + ["bee"] * 5 + ["cat"] * 5
    # A copy elsewhere is a new picture, and one that was replaced is too.
    draw_picture(pictures / "bee" / "0.png", 77, size=(50, 50))
    shutil.copy(pictures / "ant" / "1.png", pictures / "copy.png")
    changed = [*search_images(small_model, index, [f"{pictures}/*/*.png", pictures / "copy.png"], k=3)]
    assert embedded == [2]
    assert changed[:5] + changed[6:15] == before[:5] + before[6:]
    assert changed[5].hits[0].score < 1 - 1e-4
    assert (changed[15].hits[0].path, changed[15].label) == (str(pictures / "ant" / "1.png"), None)


def test_another_model_is_refused_before_anything_is_searched(pictures, index):
    with pytest.raises(ValueError, match="fingerprint"):
        next(search_images(Embedder("small_cnn", "gap", 16), index, pictures))


def test_the_picture_shows_queries_neighbours_and_weights(small_model, pictures, index, tmp_path, monkeypatch):
    answers = [*search_images(small_model, index, pictures / "ant", k=3)][:2]
    weighed = []

    def black(image, weights, scale):
        weighed.append((image, weights))
        return np.zeros((*image.shape[1:], 3), dtype=np.uint8)

    plain = _cells(draw_answers(small_model, answers, tmp_path / "deep" / "found.png"))
    monkeypatch.setattr(figure, "weights_over", black)
    blackened = _cells(draw_answers(small_model, answers, tmp_path / "black.png"))
    # Two lines a query, and a column for it and for each neighbour: the images above, below them their weights.
    assert ((plain < 250).any(axis=-1).mean(axis=(1, 3)) > 0.5).all()
    np.testing.assert_array_equal(blackened[::2], plain[::2])
    assert (blackened[1::2].mean(axis=(1, 3, 4)) < plain[1::2].mean(axis=(1, 3, 4)) - 20).all()
    shown = [path for answer in answers for path in (answer.query, *(hit.path for hit in answer.hits))]
    assert len(weighed) == len(shown) == 8
    for path, (image, weights) in zip(shown, weighed, strict=True):
        seen = small_model.pixels.transform()(Image.open(path).convert("RGB"))
        with torch.no_grad():
            embedded = small_model.embed(seen[None])
        assert image.equal(seen)
        torch.testing.assert_close(weights, embedded.weights[0].reshape(embedded.grid))


def _cells(path) -> np.ndarray:
    """Cut a picture of four lines and four columns, without the scale below them, into its cells."""
    drawn = np.asarray(Image.open(path).convert("RGB")).astype(int)[: -round(110 * SCALE)]
    height, width = (length // 4 for length in drawn.shape[:2])
    return drawn[: 4 * height, : 4 * width].reshape(4, height, 4, width, 3)


def test_a_picture_can_be_drawn_although_a_neighbour_is_gone(small_model, pictures, index, tmp_path):
    answers = [*search_images(small_model, index, pictures / "ant" / "0.png", k=3)]
    (pictures / "ant" / "0.png").rename(tmp_path / "query.png")
    kept = [answers[0]._replace(query=str(tmp_path / "query.png"))]
    assert draw_answers(small_model, kept, tmp_path / "found.svg").stat().st_size > 1000


def test_a_layer_without_weights_is_drawn_without_them(pictures, tmp_path):
    model = Embedder("small_cnn", "gmp", 16).eval()
    embed_corpus(model, pictures, tmp_path / "vectors.parquet")
    answers = [*search_images(model, open_index(tmp_path / "vectors.parquet"), pictures / "ant" / "0.png", k=2)]
    assert draw_answers(model, answers, tmp_path / "found.png").exists()


def test_wrong_pictures_are_refused(small_model, tmp_path):
    with pytest.raises(ValueError, match=r"\.png, \.pdf, \.svg"):
        draw_answers(small_model, [Answer("a.png", [])], tmp_path / "found.gif")
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_answers(small_model, [Answer("a.png", [], problem="gone")], tmp_path / "found.png")
