"""What the page shows, as HTML: every picture inside, every name as text."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from gspool import Embedder
from gspool.search import explain, prepare
from gspool.search.explanation.overlay import owners_over, weights_over
from gspool.search.serve.page import explanation_html, neighbours_html
from search.corpus_files import noise
from search.served import HOSTILE, make_lookup


def found(lookup, seed: int, k: int):
    return lookup.search(prepare(noise(seed), lookup.model), k)


def pictures_in(page: str) -> list[np.ndarray]:
    found = []
    for data in re.findall(r'src="data:image/png;base64,([^"]+)"', page):
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            found.append(np.asarray(picture.convert("RGB")))
    return found


def test_cards_come_in_the_order_of_the_neighbours(lookup) -> None:
    hits = found(lookup, 2, 5)
    page = neighbours_html(lookup, hits, "pictures", None)
    assert page.count('<figure class="card"') == 5
    places = [page.index(f">{hit.name}<") for hit in hits]
    assert places == sorted(places)
    assert np.array_equal(pictures_in(page)[0], np.asarray(noise(2)))


@pytest.mark.parametrize("view", ["weights", "prototypes"])
def test_cards_show_where_the_model_looks(lookup, small_model, view: str) -> None:
    query = explain(small_model, noise(2))
    page = neighbours_html(lookup, found(lookup, 2, 1), view, query, size=64)
    expected = owners_over(query) if view == "prototypes" else weights_over(query.image, query.weights)
    assert np.array_equal(pictures_in(page)[0], expected)
    assert "shared 100%" in page


def test_nothing_found_says_what_to_do(lookup) -> None:
    assert "lower the threshold" in neighbours_html(lookup, [], "pictures", None)


def test_a_file_that_is_gone_leaves_the_others(small_model, tmp_path) -> None:
    lookup = make_lookup(tmp_path, small_model)
    hits = found(lookup, 2, 3)
    (tmp_path / "pictures" / hits[1].name).unlink()
    page = neighbours_html(lookup, hits, "pictures", None)
    assert len(pictures_in(page)) == 2
    assert f"picture {hits[1].id}: there is no such file" in page
    assert str(tmp_path) not in page


def test_labels_and_names_are_text(lookup) -> None:
    hits = [hit.model_copy(update={"name": '"><script>x</script>'}) for hit in found(lookup, 200, 1)]
    page = neighbours_html(lookup, hits, "pictures", None)
    assert hits[0].label == HOSTILE
    assert HOSTILE not in page
    assert "<script>" not in page
    assert 'alt="&quot;&gt;&lt;script&gt;x&lt;/script&gt;"' in page


def test_the_query_is_explained_in_three_pictures_and_bars(small_model) -> None:
    page = explanation_html(explain(small_model, noise(2)), top=4)
    assert len(pictures_in(page)) == 3
    assert page.count('class="bar"') == 4
    assert "width:100.0%" in page


def test_a_model_without_prototypes_shows_two(small_model) -> None:
    page = explanation_html(explain(Embedder("small_cnn", pooling="gap", dim=8), noise(2)))
    assert len(pictures_in(page)) == 2
    assert "of this model has no prototypes, only weights" in page
