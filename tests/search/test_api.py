"""The HTTP interface: right answers to programs, refusals in words to everybody else."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from gspool import Embedder
from gspool.search import Limits, embed_corpus, prepare
from gspool.search.index.rerank import Rerank
from gspool.search.serve import lookup as served
from gspool.search.serve.api import create_api
from gspool.search.serve.lookup import Lookup
from gspool.search.serve.page import create_page
from search.corpus_files import draw_picture, noise
from search.served import EACH, HOSTILE, LABELS, as_bytes, in_a_loop, make_lookup, png_bomb

LIMITS = Limits(max_bytes=60_000, max_pixels=100_000)


@pytest.fixture(scope="module")
def client(lookup) -> TestClient:
    return TestClient(create_api(lookup, LIMITS), raise_server_exceptions=False)


def sent(client: TestClient, content: bytes, route: str = "search", name: str = "picture.png", **fields):
    return client.post(f"/api/{route}", files={"image": (name, content)}, data=fields)


def corpus_vectors(lookup: Lookup) -> tuple[list[str | None], np.ndarray]:
    rows = sorted(lookup.index.table.to_arrow().to_pylist(), key=lambda row: row["row"])
    return [row["label"] for row in rows], np.array([row["vector"] for row in rows], dtype=np.float64)


def test_neighbours_are_those_of_a_search_by_hand(client, lookup, small_model) -> None:
    picture = noise(999)
    with torch.no_grad():
        query = small_model(prepare(picture, small_model)[None])[0].double().numpy()
    labels, vectors = corpus_vectors(lookup)
    scores = vectors @ query
    expected = sorted(range(len(scores)), key=lambda row: -scores[row])[:5]
    answer = sent(client, as_bytes(picture), k=5).json()["neighbours"]
    assert [hit["id"] for hit in answer] == expected
    np.testing.assert_allclose([hit["score"] for hit in answer], scores[expected], atol=1e-5)
    assert [hit["label"] for hit in answer] == [labels[row] for row in expected]


def test_several_queries_in_one_request_are_answered_as_one_by_one(client) -> None:
    pictures = [as_bytes(noise(seed)) for seed in (0, 999)]
    files = [("image", (f"{number}.png", content)) for number, content in enumerate([*pictures, b"words"])]
    answers = client.post("/api/search_many", files=files, data={"id": [5, 99], "k": 4}).json()["answers"]
    assert [answer["query"] for answer in answers] == ["0.png", "1.png", "2.png", 5, 99]
    for answer, content in zip(answers, pictures, strict=False):
        assert answer["neighbours"] == sent(client, content, k=4).json()["neighbours"]
    assert "not one of JPEG" in answers[2]["problem"]
    # A picture of the corpus is not its own neighbour.
    others = sent(client, as_bytes(noise(101)), k=5).json()["neighbours"]
    assert others[0]["id"] == 5
    assert [hit["id"] for hit in answers[3]["neighbours"]] == [hit["id"] for hit in others[1:]]
    assert (answers[3]["label"], answers[3]["problem"]) == ("bee", None)
    assert "there is no picture 99" in answers[4]["problem"]
    for data in ({}, {"id": [0] * 101}, {"id": [0], "label": "dog"}):
        assert client.post("/api/search_many", data=data).status_code == 422


def test_the_images_of_one_request_share_a_number_of_pixels(client) -> None:
    """What is too large by itself, or is refused, leaves its share to the others."""
    large = as_bytes(noise(1, (300, 300)))
    pictures = [png_bomb(9000, 9000), large, large, large, large, large, as_bytes(noise(0))]
    files = [("image", (f"{number}.png", content)) for number, content in enumerate(pictures)]
    answers = client.post("/api/search_many", files=files, data={"k": 1}).json()["answers"]
    assert [bool(answer["neighbours"]) for answer in answers] == [False, True, True, True, True, False, True]
    assert "9000 x 9000 pixels, at most 100,000" in answers[0]["problem"]
    assert "may have 400,000 pixels together; send this one in another" in answers[5]["problem"]


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_an_image_whose_vector_has_no_direction_is_refused_alone(lookup, value: float, monkeypatch) -> None:
    client, black = TestClient(create_api(lookup, LIMITS)), as_bytes(Image.new("RGB", (64, 64)))
    embed_batch = served.embed_batch

    def without_direction(model, images):
        embedded = embed_batch(model, images)
        return embedded._replace(embedding=embedded.embedding * value) if not images.any() else embedded

    monkeypatch.setattr(served, "embed_batch", without_direction)
    for route in ("search", "embed"):
        answer = sent(client, black, route)
        assert (answer.status_code, "zero or not finite" in answer.json()["detail"]) == (422, True)
    files = [("image", ("0.png", black)), ("image", ("1.png", as_bytes(noise(0))))]
    answers = client.post("/api/search_many", files=files).json()["answers"]
    assert "zero or not finite" in answers[0]["problem"]
    assert len(answers[1]["neighbours"]) == 10


def test_a_corpus_that_grows_is_searched_by_its_new_labels(small_model, tmp_path) -> None:
    lookup = make_lookup(tmp_path, small_model)
    client = TestClient(create_api(lookup, LIMITS))
    page = in_a_loop(create_page, lookup, LIMITS)
    draw_picture(tmp_path / "more" / "dog" / "0.png", 7)
    embed_corpus(small_model, tmp_path / "more", tmp_path / "vectors.lance", device="cpu", workers=1)
    assert client.get("/api/labels").json()["labels"] == sorted([*LABELS, "dog"])
    found = sent(client, as_bytes(noise(7)), label="dog").json()["neighbours"]
    assert [(hit["label"], hit["name"]) for hit in found] == [("dog", "0.png")]
    # A page that is opened now offers it.
    (load,) = [each for each in page.fns.values() if ("load" in {name for _, name in each.targets})]
    assert ("dog", "dog") in load.fn().choices


def test_a_picture_that_is_removed_while_it_is_searched_from_is_not_found(lookup, monkeypatch) -> None:
    monkeypatch.setattr(lookup.index, "vectors", lambda rows: {})
    answers = TestClient(create_api(lookup, LIMITS)).post("/api/search_many", data={"id": 5}).json()["answers"]
    assert "there is no picture 5" in answers[0]["problem"]


def test_a_re_ranking_that_does_not_fit_is_refused_before_anything_is_served(lookup) -> None:
    with pytest.raises(ValueError, match="length 16 have no 17 directions"):
        Lookup(lookup.model, lookup.index, Rerank(whiten=17))


def test_matches_are_marked_by_the_threshold_and_neighbours_re_ranked(lookup) -> None:
    first, *_ = lookup.search(0, k=3)
    marked = Lookup(lookup.model, lookup.index, match=first.score)
    assert [hit.match for hit in marked.search(0, k=3)] == [True, False, False]
    answer = sent(TestClient(create_api(marked, LIMITS)), as_bytes(noise(0)), k=3).json()["neighbours"]
    assert [hit["match"] for hit in answer] == [True, True, False]
    whitened = Lookup(lookup.model, lookup.index, Rerank(expand=2, whiten=8)).search(0, k=3)
    assert len(whitened) == 3
    assert [hit.score for hit in whitened] != [hit.score for hit in lookup.search(0, k=3)]


def test_labels_narrow_the_search_and_may_hold_anything(client) -> None:
    content = as_bytes(noise(0))
    assert client.get("/api/labels").json()["labels"] == sorted(LABELS)
    for label in LABELS:
        found = sent(client, content, k=50, label=label).json()["neighbours"]
        assert [hit["label"] for hit in found] == [label] * EACH
    both = sent(client, content, k=50, label=["ant", HOSTILE]).json()["neighbours"]
    assert len(both) == 2 * EACH


def test_a_threshold_leaves_out_what_is_far(client) -> None:
    content = as_bytes(noise(0))
    everything = sent(client, content, k=50).json()["neighbours"]
    assert len(everything) == EACH * len(LABELS)
    threshold = everything[3]["score"]
    assert len(sent(client, content, k=50, threshold=threshold).json()["neighbours"]) == 4
    assert len(sent(client, content, k=50, threshold=1).json()["neighbours"]) <= 1


def test_no_path_of_the_server_is_told(client, lookup) -> None:
    answer = sent(client, as_bytes(noise(0)), k=50)
    folder = str(lookup.index.path.parent)
    assert folder not in answer.text
    assert folder not in client.get("/api/health").text
    assert folder not in client.get("/docs").text


def test_the_vector_is_that_of_the_model(client, small_model) -> None:
    answer = sent(client, as_bytes(noise(5)), "embed").json()
    with torch.no_grad():
        expected = small_model(prepare(noise(5), small_model)[None])[0]
    torch.testing.assert_close(torch.tensor(answer["embedding"]), expected, atol=1e-6, rtol=1e-5)
    assert answer["fingerprint"] == client.get("/api/health").json()["fingerprint"]


def test_an_explanation_has_maps_that_sum_to_one(client) -> None:
    answer = sent(client, as_bytes(noise(5)), "explain").json()
    rows, columns = answer["grid"]
    assert np.array(answer["weights"]).shape == np.array(answer["owners"]).shape == (rows, columns)
    assert np.sum(answer["weights"]) == pytest.approx(1, abs=1e-5)
    assert sum(answer["attributes"]) == pytest.approx(1, abs=1e-5)


def test_a_model_that_cannot_be_explained_is_searched_all_the_same(tmp_path) -> None:
    client = TestClient(create_api(make_lookup(tmp_path, Embedder("small_cnn", pooling="gmp", dim=8)), LIMITS))
    assert len(sent(client, as_bytes(noise(0)), k=3).json()["neighbours"]) == 3
    answer = sent(client, as_bytes(noise(0)), "explain")
    assert answer.status_code == 422
    assert "'gmp' of this model gives no weight" in answer.json()["detail"]


def test_health_says_what_is_served(client, small_model) -> None:
    health = client.get("/api/health").json()
    assert (health["status"], health["pooling"], health["dim"]) == ("ok", "gsp", 16)
    assert (health["pictures"], health["exact"]) == (EACH * len(LABELS), True)
    assert (health["max_bytes"], health["max_pixels"]) == tuple(LIMITS)


def test_pictures_are_shown_by_number(client) -> None:
    found = sent(client, as_bytes(noise(102)), k=1).json()["neighbours"][0]
    answer = client.get(found["picture"])
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content)) as picture:
        assert np.array_equal(np.asarray(picture), np.asarray(noise(102)))
    with Image.open(io.BytesIO(client.get(found["picture"], params={"side": 16}).content)) as picture:
        assert max(picture.size) == 16


@pytest.mark.parametrize("number", ["12", str(2**63), str(2**70), "-1", "1 OR 1=1", "..%2f..%2fetc%2fpasswd", "0.5"])
def test_numbers_of_no_picture_are_not_found(client, number: str) -> None:
    answer = client.get(f"/api/pictures/{number}")
    if number.isdigit():
        assert answer.status_code == 404
        assert f"there is no picture {number}" in answer.json()["detail"]
    else:
        assert answer.status_code in (404, 422)


def test_a_file_that_was_moved_is_gone(small_model, tmp_path) -> None:
    lookup = make_lookup(tmp_path, small_model)
    (tmp_path / "pictures" / "0-0.png").unlink()
    answer = TestClient(create_api(lookup, LIMITS)).get("/api/pictures/0")
    assert answer.status_code == 410
    assert str(tmp_path) not in answer.text


@pytest.mark.parametrize("route", ["search", "embed", "explain"])
@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"words", 415, "not one of JPEG"),
        (b"", 422, "empty"),
        (as_bytes(noise(0))[:-60], 422, "damaged"),
        (as_bytes(noise(0), "TIFF"), 415, "not one of JPEG"),
        (png_bomb(9000, 9000), 413, "9000 x 9000 pixels, at most 100,000"),
        (png_bomb(30_000, 300), 413, "pixels"),
        (png_bomb(1, 90_000), 413, "1 x 90000 pixels are too long and narrow"),
        (bytes(60_001), 413, "make it smaller"),
    ],
    ids=["words", "nothing", "cut off", "TIFF", "bomb", "wide bomb", "line", "too long"],
)
def test_hostile_uploads_are_refused_in_words(client, route: str, content: bytes, status: int, words: str) -> None:
    answer = sent(client, content, route)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True)


@pytest.mark.parametrize("size", [(1000, 1000), (12_000, 12_000), (20_000, 20_000), (1, 500_000), (500_000, 1)])
def test_a_bomb_is_refused_before_it_is_decoded(client, size, monkeypatch) -> None:
    """Kilobytes that would become megapixels: below and above the sizes at which Pillow warns and refuses."""

    def decoded(*arguments, **options):
        raise AssertionError("a bomb was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    assert sent(client, png_bomb(*size)).status_code == 413


@pytest.mark.parametrize("name", ["../../etc/passwd", "a.php", "x" * 250 + ".png", "\x00.png", "con.svg"])
def test_the_name_of_an_upload_means_nothing(client, name: str) -> None:
    assert sent(client, as_bytes(noise(0)), name=name, k=1).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"k": 0},
        {"k": 101},
        {"k": "many"},
        {"threshold": 2},
        {"threshold": "nan"},
        {"label": "dog"},
        {"label": "' OR 1=1"},
    ],
)
def test_wrong_fields_are_refused(client, fields: dict) -> None:
    answer = sent(client, as_bytes(noise(0)), **fields)
    assert answer.status_code == 422
    assert next(iter(fields)) in answer.json()["detail"]
    if "label" in fields:
        assert "it has 3 labels: <img" in answer.json()["detail"]


def test_a_request_without_a_picture_is_refused(client) -> None:
    answer = client.post("/api/search", data={"k": 3})
    assert (answer.status_code, answer.json()) == (422, {"detail": "image: Field required"})
    assert client.get("/api/search").status_code == 405


def test_the_interface_is_described_for_programs_and_people(client) -> None:
    schema = client.get("/openapi.json").json()
    assert set(schema["paths"]) == {
        "/api/health",
        "/api/labels",
        "/api/search",
        "/api/search_many",
        "/api/embed",
        "/api/explain",
        "/api/pictures/{number}",
    }
    for path, way in schema["paths"].items():
        described = next(iter(way.values()))["responses"]["422"]["content"]["application/json"]["schema"]
        assert described == {"$ref": "#/components/schemas/Problem"}, path
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    for path in schema["paths"]:
        assert path in page.text
    assert "from 1 to 100, default 10" in page.text
    # Nothing is loaded from anywhere: the only addresses are in the commands to try.
    assert "<script" not in page.text
    assert "<link" not in page.text
    assert page.text.count("http") == page.text.count("http://testserver/api/") == 7
    strange = client.get("/docs", headers={"host": "<script>alert(1)</script>"})
    assert "<script" not in strange.text
