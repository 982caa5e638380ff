"""The Triton kernels on a GPU: `pytest -m gpu tests/functional`."""

import pytest
import torch

from functional import kernel_cases as cases
from gspool.functional import gsp_pool

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [(2, 49, 64, 128), (2, 196, 65, 100), (1, 1024, 128, 768), (1, 16384, 16, 64)])
@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 5.0), (0.97, 60.0)])
def test_weights_are_exact(size, mu, epsilon):
    cases.weights_are_exact(*size, mu, epsilon, device="cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(3, 49, 64, 96), (3, 196, 100, 70), (2, 63, 1024, 33), (2, 300, 7, 4096)])
@pytest.mark.parametrize("role", ["foreground", "background"])
def test_gradients_agree_with_the_plain_version(dtype, size, role):
    cases.agrees(*cases.problem(*size, device="cuda"), dtype=dtype, role=role, slack=2.0)


def test_laws():
    cases.tokens_on_prototypes_are_exact("cuda")
    cases.channels_first_needs_no_copy("cuda")
    cases.padding_is_never_looked_at("cuda")
    cases.deterministic_runs_repeat("cuda")


@pytest.mark.parametrize("size", [(2, 5, 7), (2, 70, 1300), (1, 3, 17000)])
def test_transport_agrees(size):
    cases.transport_agrees(*size, device="cuda")


def test_auto_is_the_plain_version():
    tokens, prototypes = cases.problem(2, 49, 16, 64, device="cuda")
    auto = gsp_pool(tokens, prototypes, 0.3, 5.0)
    plain = gsp_pool(tokens, prototypes, 0.3, 5.0, backend="torch")
    assert auto.weights.equal(plain.weights)


def test_compiled_autocast_and_graph_replay():
    tokens, prototypes = cases.problem(2, 49, 16, 64, device="cuda")

    def pool(tokens):
        return gsp_pool(tokens, prototypes, 0.3, 5.0).pooled

    expected = pool(tokens)
    torch.testing.assert_close(torch.compile(pool, fullgraph=True)(tokens), expected, rtol=1e-6, atol=1e-7)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.testing.assert_close(pool(tokens), expected, rtol=1e-6, atol=1e-7)
    pool(tokens)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = pool(tokens)
    replayed.zero_()
    graph.replay()
    torch.testing.assert_close(replayed, expected, rtol=1e-6, atol=1e-7)
