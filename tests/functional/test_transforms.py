"""torch.compile, torch.export and torch.func see the same function."""

import pytest
import torch

from gspool.functional import gsp_pool, partial_transport
from oracle import random_problem


def loss(x, w, mu=0.3, epsilon=5.0):
    out = gsp_pool(x, w, mu, epsilon)
    return out.pooled.square().sum() + out.attributes.square().sum() + out.weights.sin().sum()


@pytest.fixture
def problem():
    return random_problem(3, 7, 4, dim=5, dtype=torch.float32)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_as_one_graph(problem, backend):
    x, w = problem
    ours, compiled = [t.clone().requires_grad_() for t in problem], [t.clone().requires_grad_() for t in problem]
    loss(*ours).backward()
    value = torch.compile(loss, fullgraph=True, backend=backend)(*compiled)
    value.backward()
    torch.testing.assert_close(value, loss(x, w))
    for a, b in zip(ours, compiled, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


def test_transport_compiles_as_one_graph():
    cost = torch.rand(2, 3, 7)
    compiled = torch.compile(partial_transport, fullgraph=True, backend="aot_eager")(cost, 0.3, 5.0)
    torch.testing.assert_close(compiled.plan, partial_transport(cost, 0.3, 5.0).plan)


class Pool(torch.nn.Module):
    def __init__(self, prototypes):
        super().__init__()
        self.prototypes = torch.nn.Parameter(prototypes)

    def forward(self, x):
        return gsp_pool(x, self.prototypes, 0.3, 5.0)


def test_exports_with_free_batch_and_token_count(problem):
    x, w = problem
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    exported = torch.export.export(Pool(w), (x,), dynamic_shapes=(free,)).module()
    other = torch.randn(5, 11, 5)
    for a, b in zip(exported(other), gsp_pool(other, w, 0.3, 5.0), strict=True):
        torch.testing.assert_close(a, b)


def test_vmap_over_prototype_sets_and_over_images(problem):
    x, w = problem
    sets = torch.stack([w, w.flip(0) * 0.5])
    together = torch.func.vmap(lambda p: gsp_pool(x, p, 0.3, 5.0))(sets)
    for i in range(2):
        torch.testing.assert_close(together.pooled[i], gsp_pool(x, sets[i], 0.3, 5.0).pooled)
    images = torch.func.vmap(lambda image: gsp_pool(image[None], w, 0.3, 5.0).pooled[0])(x)
    torch.testing.assert_close(images, gsp_pool(x, w, 0.3, 5.0).pooled)


def test_per_image_gradients_by_vmap_of_grad(problem):
    x, w = problem
    per_image = torch.func.vmap(torch.func.grad(lambda p, image: loss(image[None], p)), in_dims=(None, 0))(w, x)
    for i in range(3):
        leaf = w.clone().requires_grad_()
        loss(x[i : i + 1], leaf).backward()
        torch.testing.assert_close(per_image[i], leaf.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("close", [False, True])
def test_jacobian_equals_rows_of_gradients(problem, close):
    x, w = problem
    if close:
        # Tokens near a prototype take a way of their own.
        x = x.clone()
        x[1, 0] = w[0] + 1e-4
    jacobian = torch.func.jacrev(lambda p: gsp_pool(x, p, 0.3, 5.0).pooled)(w)
    leaf = w.clone().requires_grad_()
    gsp_pool(x, leaf, 0.3, 5.0).pooled[1, 2].backward()
    torch.testing.assert_close(jacobian[1, 2], leaf.grad, rtol=1e-4, atol=1e-6)
