"""The Triton kernels on a GPU: `pytest -m gpu tests/functional`."""

import pytest
import torch

from functional import kernel_cases as cases
from gspool.functional import gsp_pool
from gspool.functional.kernels import launch, plan

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [(2, 49, 64, 128), (2, 196, 65, 100), (1, 1024, 128, 768), (1, 16384, 16, 64)])
@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 5.0), (0.97, 60.0)])
def test_weights_are_exact(size, mu, epsilon):
    cases.weights_are_exact(*size, mu, epsilon, device="cuda")


@pytest.fixture(autouse=True)
def fresh_plans():
    """Plan every call anew: what a test has prescribed must not outlive it."""
    cases.forget_plans()


def choose_slices(monkeypatch, sliced):
    rule = cases.slices_fit if sliced else lambda *_: False
    monkeypatch.setattr(plan, "slices_are_worth_it", rule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(3, 49, 64, 96), (3, 196, 100, 70), (2, 63, 1024, 33), (2, 300, 7, 4096)])
@pytest.mark.parametrize("role", ["foreground", "background"])
@pytest.mark.parametrize("sliced", [True, False])
def test_gradients_agree_with_the_plain_version(dtype, size, role, sliced, monkeypatch):
    choose_slices(monkeypatch, sliced)
    cases.agrees(*cases.problem(*size, device="cuda"), dtype=dtype, role=role, slack=2.0)


@pytest.mark.parametrize("sums", ["product", "reduce"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(3, 49, 64, 96), (3, 196, 128, 520), (2, 300, 20, 70)])
@pytest.mark.parametrize("first", [True, False])
def test_both_ways_to_sum_tokens(sums, dtype, size, first, monkeypatch):
    """Values, gradients, and that no run differs from another, as it would if loads ran ahead too far."""
    monkeypatch.setattr(launch, "sums_of", lambda kind: sums)
    tokens, prototypes = cases.problem(*size, device="cuda")
    if first:
        tokens = tokens.transpose(1, 2).contiguous().transpose(1, 2)
    cases.agrees(tokens, prototypes, dtype=dtype, slack=2.0)
    runs = [gsp_pool(tokens.to(dtype), prototypes, 0.3, 5.0, backend="triton").pooled for _ in range(20)]
    assert all(run.equal(runs[0]) for run in runs)


@pytest.mark.parametrize("law", cases.LAWS)
@pytest.mark.parametrize("sliced", [True, False])
def test_laws(law, sliced, monkeypatch):
    choose_slices(monkeypatch, sliced)
    law("cuda")


@pytest.mark.parametrize("size", [(2, 5, 7), (2, 70, 1300), (1, 3, 17000)])
def test_transport_agrees(size):
    cases.transport_agrees(*size, device="cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(3, 49, 64, 96), (3, 196, 100, 70), (2, 63, 1024, 33), (2, 300, 7, 4096)])
@pytest.mark.parametrize("wanted", ["tw", "w"])
def test_distances_agree(dtype, size, wanted):
    cases.distances_agree(*size, device="cuda", dtype=dtype, wanted=wanted, slack=2.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_distances_of_what_is_not_finite_are_nan(value):
    cases.distances_of_what_is_not_finite_are_nan(value, device="cuda")


def test_auto_takes_the_kernels_where_they_can_run():
    tokens, prototypes = cases.problem(2, 49, 16, 64, device="cuda")
    auto, kernels = (gsp_pool(tokens, prototypes, 0.3, 5.0, backend=backend) for backend in ("auto", "triton"))
    assert auto.weights.equal(kernels.weights)
    assert type(auto_gradient(tokens, prototypes)).__name__ == "EagerPoolBackward"
    wide = (tokens.double(), prototypes.double())
    auto, plain = (gsp_pool(*wide, 0.3, 5.0, backend=backend) for backend in ("auto", "torch"))
    assert auto.weights.equal(plain.weights)
    assert type(auto_gradient(*wide)).__name__ == "_GSPPoolBackward"


def auto_gradient(tokens, prototypes):
    return gsp_pool(tokens.clone().requires_grad_(), prototypes, 0.3, 5.0).weights.grad_fn


# PyTorch's own compiler calls what PyTorch calls deprecated, and advises to be less exact.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_compiled_autocast_and_graph_replay(backend):
    tokens, prototypes = cases.problem(2, 49, 16, 64, device="cuda")

    def pool(tokens):
        return gsp_pool(tokens, prototypes, 0.3, 5.0, backend=backend).pooled

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


def test_float16_overflows_to_infinity():
    cases.float16_overflows_to_infinity("triton", device="cuda")
