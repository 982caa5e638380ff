"""What holds for every layer: laws, odd sizes, masks, gradients, precision, compilation, training."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from gspool.pooling import registry
from gspool.pooling.embedding import create_embedding
from gspool.pooling.layer import PoolingLayer

PLAIN = ["gap", "gmp", "gap+gmp", "gemean", "gemax", "crow", "weldon"]
COMBINED = ["gmp+gsp", "gemean+gsp"]
TIMM = ["avgmax", "catavgmax", "attention", "simpool", "lse"]
PROBING = ["ep", "abmilp", "map", "aim"]
ON_TOKENS = [*PLAIN, *COMBINED, *TIMM, *PROBING]
ON_MAPS = [*ON_TOKENS, "tsmk", "clip"]
MASKED = [*PLAIN, *COMBINED, "attention", "tsmk", *PROBING]


def layer_for(name: str, dim: int = 8) -> PoolingLayer:
    """Make a layer that also takes maps of a single place."""
    torch.manual_seed(0)
    layer = registry.create(name, dim=dim, **({"k": 1} if name == "weldon" else {}))
    # In training, the batch norm of AIM lets the images of a batch see each other.
    return layer.eval() if name == "aim" else layer


@pytest.mark.parametrize("name", ON_TOKENS)
def test_order_of_tokens_does_not_matter(name: str) -> None:
    layer = layer_for(name)
    x = torch.rand(2, 11, 8)
    torch.testing.assert_close(layer(x[:, torch.randperm(11)]), layer(x))


@pytest.mark.parametrize("name", ON_TOKENS)
def test_tokens_pool_as_the_map_they_came_from(name: str) -> None:
    layer = layer_for(name)
    x = torch.randn(2, 8, 3, 5)
    torch.testing.assert_close(layer(x.flatten(2).mT), layer(x))


@pytest.mark.parametrize("name", ON_MAPS)
def test_images_of_a_batch_do_not_see_each_other(name: str) -> None:
    layer = layer_for(name)
    x = torch.randn(3, 8, 3, 5)
    torch.testing.assert_close(torch.cat([layer(image[None]) for image in x]), layer(x))


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (3, 5), (13, 11)])
@pytest.mark.parametrize("name", ON_MAPS)
def test_odd_sizes_pool_and_pass_a_gradient(name: str, size: tuple[int, int]) -> None:
    layer = layer_for(name)
    x = torch.randn(2, 8, *size, requires_grad=True)
    out = layer.pool(x)
    assert out.pooled.shape == (2, layer.out_dim)
    out.pooled.square().sum().backward()
    assert torch.isfinite(out.pooled).all()
    assert torch.isfinite(x.grad).all()
    if out.weights is not None:
        assert out.weights.shape == (2, size[0] * size[1])
        assert (out.weights >= 0).all()
        torch.testing.assert_close(out.weights.sum(1), torch.ones(2))


@pytest.mark.parametrize("name", ON_MAPS)
def test_an_empty_batch_stays_empty(name: str) -> None:
    layer = layer_for(name)
    x = torch.randn(0, 8, 3, 5, requires_grad=True)
    out = layer(x)
    assert out.shape == (0, layer.out_dim)
    out.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("garbage", [1e3, float("nan"), float("inf")])
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_equals_cropping_whatever_the_padding_holds(name: str, garbage: float) -> None:
    layer = layer_for(name)
    x = torch.randn(2, 8, 5, 6)
    cropped = x[:, :, :3, :4].clone().requires_grad_()
    mask = torch.zeros(2, 5, 6, dtype=torch.bool)
    mask[:, :3, :4] = True
    padded = x.masked_fill(~mask[:, None], garbage).requires_grad_()
    with_mask, without = layer.pool(padded, mask), layer.pool(cropped)
    torch.testing.assert_close(with_mask.pooled, without.pooled)
    if without.weights is not None:
        torch.testing.assert_close(with_mask.weights[mask.flatten(1)], without.weights.flatten())
        assert with_mask.weights[~mask.flatten(1)].abs().max() == 0
    (masked_gradient,) = torch.autograd.grad(with_mask.pooled.square().sum(), padded)
    (cropped_gradient,) = torch.autograd.grad(without.pooled.square().sum(), cropped)
    torch.testing.assert_close(masked_gradient[:, :, :3, :4], cropped_gradient)
    assert masked_gradient.masked_select(~mask[:, None]).abs().max() == 0


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_of_all_true_changes_nothing(name: str) -> None:
    layer = layer_for(name)
    x = torch.randn(2, 8, 3, 4)
    torch.testing.assert_close(layer(x, torch.ones(2, 12, dtype=torch.bool)), layer(x))


# T-SMK holds the lengths of its features constant, which finite differences cannot: its own file compares gradients.
@pytest.mark.parametrize("name", ON_TOKENS)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    layer = layer_for(name).double()
    x = (torch.randn(2, 5, 8, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: [o for o in layer.pool(t) if o is not None], (x,))


@pytest.mark.parametrize("name", ON_MAPS)
def test_autocast_keeps_the_type_and_the_digits(name: str) -> None:
    layer = layer_for(name)
    x = torch.randn(2, 8, 4, 4).bfloat16()
    exact = layer(x.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, from_float = layer(x), layer(x.float())
    assert (out.dtype, from_float.dtype) == (torch.bfloat16, torch.float32)
    # bfloat16 has three digits; what is left for products is the learned layers that autocast is meant for.
    torch.testing.assert_close(out.float(), exact, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(from_float, exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ON_MAPS)
def test_half_precision_models_pool_half_precision_features(name: str) -> None:
    layer = layer_for(name).bfloat16()
    assert layer(torch.rand(2, 8, 4, 4).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ON_MAPS)
def test_compiles_to_one_graph(name: str) -> None:
    # All layers share the code of `forward`, and dynamo counts its recompilations across the tests.
    torch.compiler.reset()
    layer = layer_for(name)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 8, 3, 5, requires_grad=True)
    mask = torch.ones(2, 3, 5, dtype=torch.bool) if name in MASKED else None
    out = compiled(x, mask)
    torch.testing.assert_close(out, layer(x, mask))
    (ours,) = torch.autograd.grad(out.square().sum(), x)
    (eager,) = torch.autograd.grad(layer(x, mask).square().sum(), x)
    torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("name", registry.list())
def test_every_layer_learns_a_tiny_task(name: str) -> None:
    """Eight images of noise, four classes: a head of embedding, layer and classifier learns them by heart."""
    torch.manual_seed(0)
    images, labels = torch.randn(8, 16, 4, 4).relu(), torch.arange(8) % 4
    head = create_embedding(name, dim=16, out_dim=16)
    classifier = torch.nn.Linear(head.out_dim, 4)
    optimiser = torch.optim.Adam([*head.parameters(), *classifier.parameters()], lr=0.02)
    for _ in range(120):
        optimiser.zero_grad()
        loss = cross_entropy(10 * classifier(torch.nn.functional.normalize(head(images))), labels)
        loss.backward()
        optimiser.step()
    unused = [n for n, p in head.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert unused == []
    assert loss.item() < 0.1


@pytest.mark.parametrize("name", ON_MAPS)
def test_features_that_do_not_fit_are_refused(name: str) -> None:
    layer = layer_for(name)
    for wrong in (torch.rand(2, 7, 3, 3), torch.rand(2, 9, 7), torch.rand(8), torch.ones(2, 8, 3, 3).long()):
        with pytest.raises(ValueError, match=r"channels|features must be"):
            layer(wrong)
    with pytest.raises(ValueError, match="nothing to pool"):
        layer(torch.rand(2, 8, 0, 3))


@pytest.mark.parametrize("name", MASKED)
def test_masks_that_do_not_fit_are_refused(name: str) -> None:
    layer = layer_for(name)
    with pytest.raises(ValueError, match="mask must be boolean"):
        layer(torch.rand(2, 8, 3, 3), torch.ones(2, 3, 3))
    with pytest.raises(ValueError, match="mask must have shape"):
        layer(torch.rand(2, 8, 3, 3), torch.ones(2, 3, 4, dtype=torch.bool))
