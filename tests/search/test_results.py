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


@pytest.mark.parametrize("view", ["pictures", "weights", "prototypes"])
def test_cards_come_in_the_order_of_the_neighbours_and_show_where_the_model_looks(lookup, small_model, view) -> None:
    query, hits = explain(small_model, noise(2)), found(lookup, 2, 5)
    page = neighbours_html(lookup, hits, view, query, size=64)
    assert page.count('<figure class="card"') == 5
    places = [page.index(f">{hit.name}<") for hit in hits]
    assert places == sorted(places)
    drawn = {"pictures": np.asarray(noise(2)), "weights": weights_over(query.image, query.weights)}
    assert np.array_equal(pictures_in(page)[0], drawn[view] if view in drawn else owners_over(query))
    assert ("shared 100%" in page) == (view != "pictures")


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


@pytest.mark.parametrize(("pooling", "pictures", "bars"), [("gsp", 3, 4), ("gap", 2, 0)])
def test_the_query_is_explained_in_pictures_and_bars(small_model, pooling, pictures, bars) -> None:
    model = small_model if pooling == "gsp" else Embedder("small_cnn", pooling=pooling, dim=8)
    page = explanation_html(explain(model, noise(2)), top=4)
    assert len(pictures_in(page)) == pictures
    assert page.count('class="bar"') == bars
    assert ("of this model has no prototypes, only weights" in page) == (pooling == "gap")
