"""What holds for every layer: laws, odd sizes, masks, precision, compilation, training.

Formulas and gradients are tested in test_formulas.py, what holds for one layer only in test_special_cases.py or a file
of the layer's own.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from gspool.pooling import registry
from gspool.pooling.embedding import create_embedding
from gspool.pooling.layer import PoolingLayer
from oracle import EXACT

DIM = 8
# Layers that learn what to look at, in small sizes; a second entry of a layer is another option of it.
LEARNED = {
    "gsp": {"prototypes": 5},
    "cbam": {"reduction": 2},
    "delf": {"hidden": 6},
    "delf, normalized": {"hidden": 6, "normalize": True},
    "gsop": {"attention_dim": 5, "grid": 3},
    "otp": {"prototypes": 3, "token_dim": 4, "iterations": 3},
    "solar": {"reduction": 2},
    "vlad": {"prototypes": 3, "token_dim": 4},
    "tfm": {"layers": 2, "mlp_ratio": 2.0},
    "tfm, sinusoidal": {"position": "sinusoidal"},
}
LAYERS = {
    **{name: {} for name in registry.list()},
    **LEARNED,
    # With one token, so that it takes maps of a single place.
    "weldon": {"k": 1},
    "gsp, keys": {"prototypes": 4, "keys": 3},
    "gsp, groups": {"prototypes": 4, "groups": 2, "role": "background"},
    "gmp+gsp, embedded": {"out_dim": 4, "prototypes": 4},
    "gemean+gsp, embedded": {"out_dim": 4, "prototypes": 4},
}
NEEDS_PLANE = {"cbam", "gsop", "tfm, sinusoidal", "tsmk", "clip"}
TAKES_NO_MASK = {"gsop", "avgmax", "catavgmax", "simpool", "lse", "clip"}
HAS_BATCH_NORM = {"gsop", "solar", "aim"}

every_layer = pytest.mark.parametrize("name", LAYERS)
every_learned_layer = pytest.mark.parametrize("name", LEARNED)
every_masked_layer = pytest.mark.parametrize("name", [name for name in LAYERS if name not in TAKES_NO_MASK])
every_layer_of_tokens = pytest.mark.parametrize("name", [name for name in LAYERS if name not in NEEDS_PLANE])
HALF = {"rtol": 0.05, "atol": 0.05}


def make(name: str, seed: int = 0) -> PoolingLayer:
    """A layer in float64 whose every parameter counts: zeros would hide a forgotten bias."""
    torch.manual_seed(seed)
    layer = registry.create(name.split(",")[0], DIM, **LAYERS[name]).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def features(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@every_layer
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (3, 5), (13, 11)])
def test_maps_of_any_size_give_vectors_of_one_size_and_pass_a_gradient(name, size):
    layer = make(name)
    for mode in (layer.train(), layer.eval()):
        x = features(2, DIM, *size).requires_grad_()
        out = mode.pool(x)
        assert out.pooled.shape == (2, layer.out_dim)
        out.pooled.square().sum().backward()
        assert out.pooled.isfinite().all()
        assert x.grad.isfinite().all()
        if out.weights is not None:
            assert out.weights.shape == (2, size[0] * size[1])
            assert (out.weights >= 0).all()
            assert_close(out.weights.sum(1), torch.ones(2, dtype=torch.float64))


@every_layer
def test_an_empty_batch_stays_empty(name):
    layer = make(name).eval()
    x = features(0, DIM, 3, 5).requires_grad_()
    out = layer(x)
    assert out.shape == (0, layer.out_dim)
    out.sum().backward()
    assert x.grad is not None


@every_layer
def test_training_mode_and_frozen_mode_agree_where_nothing_is_random_or_counted(name):
    layer = make(name)
    if name in HAS_BATCH_NORM:
        # Batch norm counts: after many passes over one batch the running statistics are those of the batch, but for
        # the factor n / (n - 1) of the running variance, which the tolerance allows for.
        x = features(8, DIM, 8, 8)
        for _ in range(100):
            expected = layer.train()(x)
        assert_close(layer.eval()(x), expected, rtol=0.02, atol=0.02)
    else:
        x = features(2, DIM, 3, 5)
        assert_close(layer.eval()(x), layer.train()(x), **EXACT)


@every_layer
def test_images_do_not_see_each_other_in_evaluation(name):
    layer = make(name).eval()
    x = features(3, DIM, 3, 4)
    assert_close(layer(x)[1:2], layer(x[1:2]), **EXACT)


@every_layer_of_tokens
def test_tokens_are_the_map_in_another_shape_and_order_does_not_matter(name):
    layer = make(name).eval()
    x = features(2, DIM, 3, 4)
    tokens, order = x.flatten(2).mT, torch.randperm(12, generator=torch.Generator().manual_seed(3))
    assert_close(layer(tokens), layer(x), **EXACT)
    assert_close(layer(tokens[:, order]), layer(x), **EXACT)


@pytest.mark.parametrize("name", sorted(NEEDS_PLANE))
def test_a_layer_that_needs_the_plane_says_so(name):
    with pytest.raises(ValueError, match=r"a map \[B, C, H, W\]"):
        make(name)(features(2, 12, DIM))


@pytest.mark.parametrize("name", sorted(NEEDS_PLANE))
def test_places_matter_to_a_layer_that_needs_the_plane(name):
    layer, x = make(name).eval(), features(1, DIM, 3, 5)
    shuffled = x.flatten(2)[:, :, torch.randperm(15, generator=torch.Generator().manual_seed(3))].view_as(x)
    assert not torch.allclose(layer(x), layer(shuffled), rtol=1e-4)


@every_masked_layer
@pytest.mark.parametrize("padding", [-50.0, float("inf"), float("nan")])
def test_masking_is_cropping_whatever_stands_in_the_padding(name, padding):
    cropped = features(2, DIM, 3, 4)
    padded = torch.full((2, DIM, 5, 6), padding, dtype=torch.float64)
    padded[:, :, :3, :4] = cropped
    mask = torch.zeros(2, 5, 6, dtype=torch.bool)
    mask[:, :3, :4] = True
    for train in (False, True):
        plain, masked = make(name).train(train), make(name).train(train)
        plain_in, masked_in = cropped.clone().requires_grad_(), padded.clone().requires_grad_()
        expected, out = plain.pool(plain_in), masked.pool(masked_in, mask)
        assert_close(out.pooled, expected.pooled, **EXACT)
        if out.weights is not None:
            assert_close(out.weights[mask.flatten(1)], expected.weights.flatten(), **EXACT)
            assert out.weights[~mask.flatten(1)].count_nonzero() == 0
        if out.attributes is not None:
            assert_close(out.attributes, expected.attributes, **EXACT)
        expected.pooled.square().sum().backward()
        out.pooled.square().sum().backward()
        assert_close(masked_in.grad[:, :, :3, :4], plain_in.grad, **EXACT)
        assert masked_in.grad.masked_fill(mask[:, None], 0.0).count_nonzero() == 0
        for (key, ours), theirs in zip(masked.named_parameters(), plain.parameters(), strict=True):
            assert_close(ours.grad, theirs.grad, **EXACT, msg=key)
        for ours, theirs in zip(masked.buffers(), plain.buffers(), strict=True):
            assert_close(ours, theirs, **EXACT)


@every_masked_layer
def test_each_image_has_a_mask_of_its_own(name):
    layer = make(name).eval()
    x = features(2, DIM, 4, 4)
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    assert_close(layer(x, mask.flatten(1)), layer(x), **EXACT)
    mask[1, 2:] = False
    assert_close(layer(x, mask)[0], layer(x[:1])[0], **EXACT)
    assert_close(layer(x, mask)[1], layer(x[1:, :, :2])[0], **EXACT)


# That of the other layers is watched while they learn, below.
@every_learned_layer
def test_every_parameter_is_reached_by_the_gradient(name):
    layer = make(name)
    readout = features(6, layer.out_dim, seed=7)
    (layer(features(6, DIM, 4, 4)) * readout).sum().backward()
    for key, parameter in layer.named_parameters():
        if name in HAS_BATCH_NORM and "bias" in key and key.startswith(("reduce", "query.", "key.")):
            continue  # batch norm takes a constant shift out again
        if key.endswith("in_proj_bias"):
            continue  # the key's third of it moves all scores of a query alike
        assert parameter.grad.abs().max() > 1e-8, key


@pytest.mark.parametrize("name", [name for name in registry.list() if name not in LEARNED])
def test_a_tiny_task_is_learned(name):
    """Eight images of noise, four classes: a head of embedding, layer and classifier learns them by heart."""
    torch.manual_seed(0)
    images, labels = torch.randn(8, 16, 4, 4).relu(), torch.arange(8) % 4
    head = create_embedding(name, dim=16, out_dim=16)
    classifier = nn.Linear(head.out_dim, 4)
    optimiser = torch.optim.Adam([*head.parameters(), *classifier.parameters()], lr=0.02)
    for _ in range(120):
        optimiser.zero_grad()
        loss = cross_entropy(10 * classifier(nn.functional.normalize(head(images))), labels)
        loss.backward()
        optimiser.step()
    assert [key for key, parameter in head.named_parameters() if not parameter.grad.abs().max() > 0] == []
    assert loss.item() < 0.1


@every_learned_layer
def test_a_task_that_average_pooling_cannot_see_is_learned(name):
    """All images have the average 0, which tells a linear readout of it nothing: the layer has to do the work."""
    torch.manual_seed(0)
    layer = registry.create(name.split(",")[0], DIM, **LAYERS[name])
    x, labels = torch.randn(8, DIM, 3, 3), torch.arange(8) % 4
    x = x - x.mean((2, 3), keepdim=True)
    model = nn.Sequential(layer, nn.Linear(layer.out_dim, 4))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(150):
        loss = cross_entropy(model(x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0], losses[::30]


@every_layer
def test_autocast_keeps_the_dtype_and_nearly_the_values(name):
    layer = make(name).float()
    x = features(4, DIM, 7, 7).float().requires_grad_()
    expected = copy.deepcopy(layer).pool(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, from_half = copy.deepcopy(layer).pool(x), copy.deepcopy(layer)(x.bfloat16())
    assert (out.pooled.dtype, from_half.dtype) == (torch.float32, torch.bfloat16)
    for got, wanted in zip(out, expected, strict=True):
        if wanted is not None:
            assert_close(got, wanted, **HALF)
    for sums_to_one in (out.weights, out.attributes):
        if sums_to_one is not None:
            assert_close(sums_to_one.sum(1), torch.ones(4), rtol=1e-5, atol=1e-5)
    out.pooled.sum().backward()
    assert x.grad.isfinite().all()


@every_layer
def test_half_precision_features_give_half_precision_vectors(name):
    layer = make(name).float().eval()
    x = features(4, DIM, 7, 7).bfloat16()
    expected = layer(x.float())
    pooled = layer.bfloat16()(x)
    assert pooled.dtype == torch.bfloat16
    assert_close(pooled.float(), expected, **HALF)


# GSP is compiled in tests/functional/test_transforms.py, and exported for any size below; TFM here with its positions.
@pytest.mark.parametrize("name", [name for name in LEARNED if name not in ("gsp", "tfm")])
def test_compiles_in_one_graph_for_more_than_one_size(name):
    # All layers share the code of `forward`, and dynamo counts its recompilations across the tests.
    torch.compiler.reset()
    layer = make(name)
    compiled = torch.compile(copy.deepcopy(layer), backend="aot_eager", fullgraph=True, dynamic=True)
    for size in ((3, 5), (6, 7)):
        agree(layer, compiled, features(2, DIM, *size))


@pytest.mark.parametrize("name", [name for name in LAYERS if "embedded" not in name])
def test_compiles_in_one_graph_with_a_mask_where_it_takes_one(name):
    torch.compiler.reset()
    layer = make(name).eval()
    mask = None
    if name not in TAKES_NO_MASK:
        mask = torch.ones(2, 3, 5, dtype=torch.bool)
        mask[0, :, 3:] = False
    # The backward pass is compiled above.
    agree(layer, torch.compile(layer, backend="eager", fullgraph=True), features(2, DIM, 3, 5), mask)


def agree(layer, compiled, x, mask=None):
    """Compare values and gradients of a layer and its compiled twin."""
    x, twin = x.requires_grad_(), x.detach().clone().requires_grad_()
    expected, pooled = layer(x, mask), compiled(twin, mask)
    assert_close(pooled, expected, **EXACT)
    expected.square().sum().backward()
    pooled.square().sum().backward()
    assert_close(twin.grad, x.grad, **EXACT)


# The layers with their usual options are exported in tests/models/test_onnx_export.py.
@pytest.mark.parametrize("name", ["delf, normalized", "tfm, sinusoidal", "gsp, keys", "gsp, groups"])
def test_exports_as_one_graph_for_maps_of_any_size(name):
    layer = make(name).eval()
    free = torch.export.Dim.DYNAMIC
    with torch.no_grad():
        program = torch.export.export(layer, (features(2, DIM, 6, 5),), dynamic_shapes=({0: free, 2: free, 3: free},))
        x = features(3, DIM, 4, 9)
        assert_close(program.module()(x), layer(x), **EXACT)


@every_layer
def test_wrong_features_are_refused_in_words(name):
    layer = make(name)
    for x, message in (
        (features(2, DIM + 1, 3, 3), r"made for 8 channels \(axis 1.*got 9"),
        (features(2, DIM), r"map \[B, C, H, W\] or tokens.*x\[None\]"),
        (features(2, DIM, 0, 3), "nothing to pool"),
        (torch.ones(2, DIM, 3, 3, dtype=torch.long), "floating point"),
        ([[1.0]], "torch.Tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(x)


@every_masked_layer
def test_wrong_masks_are_refused_in_words(name):
    layer, x = make(name), features(2, DIM, 3, 4)
    empty = torch.ones(2, 3, 4, dtype=torch.bool)
    empty[1] = False
    for mask, message in (
        (torch.ones(2, 3, 4), r"mask must be boolean.*mask.bool\(\)"),
        (torch.ones(2, 4, 4, dtype=torch.bool), r"mask must have shape \(2, 3, 4\) or \(2, 12\)"),
        (empty, "without a single real token"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(x, mask)


@pytest.mark.parametrize("name", sorted(TAKES_NO_MASK))
def test_a_layer_without_masks_says_so(name):
    with pytest.raises(ValueError, match="takes no mask"):
        make(name)(features(2, DIM, 3, 4), torch.ones(2, 3, 4, dtype=torch.bool))
