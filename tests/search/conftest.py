"""Pictures, a small model, and one server of both, for the tests of search."""

from __future__ import annotations

import pytest
import torch

from gspool import Embedder
from search.corpus_files import draw_picture
from search.served import Server, make_lookup, write_corpus

CLASSES = ("ant", "bee", "cat")
EACH = 5


@pytest.fixture(scope="session")
def small_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Embedder(
            "small_cnn", pooling="gsp", dim=16, pooling_options={"prototypes": 8, "mu": 0.3, "epsilon": 5.0}
        ).eval()


@pytest.fixture(scope="session")
def model_folder(small_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    small_model.save_pretrained(folder)
    return folder


@pytest.fixture
def pictures(tmp_path):
    """Fifteen pictures of three classes in sub-folders."""
    root = tmp_path / "pictures"
    for number, name in enumerate(CLASSES):
        for picture in range(EACH):
            draw_picture(root / name / f"{picture}.png", 100 * number + picture)
    return root


@pytest.fixture(scope="session")
def lookup(small_model, tmp_path_factory):
    """A model and a corpus of twelve pictures, as a server holds them."""
    return make_lookup(tmp_path_factory.mktemp("corpus"), small_model)


@pytest.fixture(scope="session")
def served_folder(small_model, tmp_path_factory):
    """A model, its corpus, and a file that no server should show."""
    place = tmp_path_factory.mktemp("served")
    write_corpus(place, small_model)
    small_model.save_pretrained(place / "model")
    (place / "secret.txt").write_text("the secret")
    return place


@pytest.fixture(scope="session")
def servers():
    started: list[Server] = []
    yield started
    for each in started:
        each.stop()


@pytest.fixture
def server(servers, served_folder):
    """One server with small bounds for all tests; started again, which takes long, after a test that has stopped it."""
    if not servers or servers[-1].process.poll() is not None:
        servers.append(Server(served_folder, "--timeout", "2", "--max-mb", "1", "--max-uploads-mb", "2"))
    return servers[-1]
