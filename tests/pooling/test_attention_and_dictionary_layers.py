"""What CBAM, DeLF, GSoP, OTP, SOLAR, NetVLAD and TFM have in common; the formula of each is in a file of its own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gspool.pooling.cbam import CBAM
from gspool.pooling.delf import DeLF
from gspool.pooling.gsop import GSoP
from gspool.pooling.layer import PoolingLayer
from gspool.pooling.otp import OTP
from gspool.pooling.solar import SOLAR
from gspool.pooling.tfm import TFM
from gspool.pooling.vlad import NetVLAD

DIM = 8
LAYERS = {
    "cbam": lambda: CBAM(DIM, reduction=2),
    "delf": lambda: DeLF(DIM, hidden=6),
    "delf-normalized": lambda: DeLF(DIM, hidden=6, normalize=True),
    "gsop": lambda: GSoP(DIM, attention_dim=5, grid=3),
    "otp": lambda: OTP(DIM, prototypes=3, token_dim=4),
    "solar": lambda: SOLAR(DIM, reduction=2),
    "vlad": lambda: NetVLAD(DIM, prototypes=3, token_dim=4),
    "tfm": lambda: TFM(DIM, layers=2, mlp_ratio=2.0),
    "tfm-sinusoidal": lambda: TFM(DIM, position="sinusoidal"),
}
NEEDS_PLANE = {"cbam", "gsop", "tfm-sinusoidal"}
TAKES_NO_MASK = {"gsop"}
IN_ANY_ORDER = {"delf", "delf-normalized", "otp", "solar", "vlad", "tfm"}

every_layer = pytest.mark.parametrize("name", LAYERS)
every_masked_layer = pytest.mark.parametrize("name", [name for name in LAYERS if name not in TAKES_NO_MASK])
TOLERANCE = {torch.float64: {"rtol": 1e-9, "atol": 1e-11}, torch.bfloat16: {"rtol": 0.05, "atol": 0.05}}


def make(name: str, seed: int = 0) -> PoolingLayer:
    """A layer in float64 whose every parameter counts: zeros would hide a forgotten bias."""
    torch.manual_seed(seed)
    layer = LAYERS[name]().double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def features(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_parameters(layer: PoolingLayer, *arguments: torch.Tensor, **options: torch.Tensor):
    """The layer as a function of its features and all its parameters, for finite differences."""
    names = [name for name, _ in layer.named_parameters()]
    x, *values = arguments
    return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,), options)


@every_layer
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (3, 5), (9, 2)])
def test_maps_of_any_size_give_vectors_of_one_size(name, size):
    layer = make(name)
    for mode in (layer.train(), layer.eval()):
        pooled = mode(features(2, DIM, *size))
        assert pooled.shape == (2, layer.out_dim)
        assert pooled.isfinite().all()


@every_layer
def test_training_mode_and_frozen_mode_agree_where_nothing_is_random_or_counted(name):
    layer = make(name)
    if any(isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) for module in layer.modules()):
        # Batch norm counts: after many passes over one batch the running statistics are those of the batch, but for
        # the factor n / (n - 1) of the running variance, which the tolerance allows for.
        x = features(8, DIM, 8, 8)
        for _ in range(300):
            expected = layer.train()(x)
        torch.testing.assert_close(layer.eval()(x), expected, rtol=0.02, atol=0.02)
    else:
        x = features(2, DIM, 3, 5)
        torch.testing.assert_close(layer.eval()(x), layer.train()(x), **TOLERANCE[torch.float64])


@every_layer
def test_images_do_not_see_each_other_in_evaluation(name):
    layer = make(name).eval()
    x = features(3, DIM, 3, 4)
    torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]), **TOLERANCE[torch.float64])


@pytest.mark.parametrize("name", sorted(set(LAYERS) - NEEDS_PLANE))
def test_tokens_are_the_map_in_another_shape(name):
    layer = make(name).eval()
    x = features(2, DIM, 3, 4)
    torch.testing.assert_close(layer(x.flatten(2).transpose(1, 2)), layer(x), **TOLERANCE[torch.float64])


@pytest.mark.parametrize("name", sorted(NEEDS_PLANE))
def test_a_layer_that_needs_the_plane_says_so(name):
    with pytest.raises(ValueError, match=r"give (it )?a map \[B, C, H, W\], got \(2, 12, 8\)"):
        make(name)(features(2, 12, DIM))


@pytest.mark.parametrize("name", sorted(IN_ANY_ORDER))
def test_order_of_tokens_does_not_matter(name):
    layer = make(name).eval()
    x = features(2, 12, DIM)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(layer(x[:, order]), layer(x), **TOLERANCE[torch.float64])


@every_masked_layer
@pytest.mark.parametrize("padding", [0.0, -50.0, float("inf"), float("nan")])
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
        torch.testing.assert_close(out.pooled, expected.pooled, **TOLERANCE[torch.float64])
        if out.weights is not None:
            kept = out.weights.view(2, 5, 6)
            torch.testing.assert_close(kept[:, :3, :4].flatten(1), expected.weights, **TOLERANCE[torch.float64])
            assert kept.masked_fill(mask, 0.0).count_nonzero() == 0
        if out.attributes is not None:
            torch.testing.assert_close(out.attributes, expected.attributes, **TOLERANCE[torch.float64])
        expected.pooled.square().sum().backward()
        out.pooled.square().sum().backward()
        torch.testing.assert_close(masked_in.grad[:, :, :3, :4], plain_in.grad, **TOLERANCE[torch.float64])
        assert masked_in.grad.masked_fill(mask[:, None], 0.0).count_nonzero() == 0
        for (key, ours), theirs in zip(masked.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, **TOLERANCE[torch.float64], msg=key)
        for ours, theirs in zip(masked.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, **TOLERANCE[torch.float64])


@every_masked_layer
def test_each_image_has_a_mask_of_its_own(name):
    layer = make(name).eval()
    x = features(2, DIM, 4, 4)
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    mask[1, 2:] = False
    pooled = layer(x, mask)
    torch.testing.assert_close(pooled[0], layer(x[:1])[0], **TOLERANCE[torch.float64])
    torch.testing.assert_close(pooled[1], layer(x[1:, :, :2])[0], **TOLERANCE[torch.float64])


@every_masked_layer
def test_an_image_without_a_real_token_is_refused(name):
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    mask[1] = False
    with pytest.raises(ValueError, match="without a single real token"):
        make(name)(features(2, DIM, 3, 4), mask)


def test_gsop_says_that_it_takes_no_mask():
    with pytest.raises(ValueError, match=r"takes no mask.*Crop"):
        make("gsop")(features(2, DIM, 3, 4), torch.ones(2, 3, 4, dtype=torch.bool))


@every_layer
@pytest.mark.parametrize("train", [False, True])
def test_gradients_of_features_and_parameters_are_those_of_finite_differences(name, train):
    layer = make(name, seed=4).train(train)
    # A few places are enough, and keep the finite differences few.
    x = features(2, DIM, 2, 2, seed=5)
    arguments = [x, *(parameter.detach().clone() for parameter in layer.parameters())]
    arguments = [argument.requires_grad_() for argument in arguments]
    assert torch.autograd.gradcheck(
        lambda *values: with_parameters(layer, *values), arguments, fast_mode=True, rtol=1e-3, atol=1e-6
    )


@every_layer
def test_every_parameter_is_reached_by_the_gradient(name):
    layer = make(name)
    readout = features(6, layer.out_dim, seed=7)
    (layer(features(6, DIM, 4, 4)) * readout).sum().backward()
    for key, parameter in layer.named_parameters():
        if "bias" in key and any(key.startswith(start) for start in ("reduce", "query.", "key.")):
            continue  # batch norm takes a constant shift out again
        if key.endswith("in_proj_bias"):
            continue  # the key's third of it moves all scores of a query alike
        assert parameter.grad.abs().max() > 1e-8, key


@every_layer
def test_a_task_that_average_pooling_cannot_see_is_learned(name):
    """All images have the average 0, which tells a linear readout of it nothing: the layer has to do the work."""
    torch.manual_seed(0)
    layer = LAYERS[name]()
    x, labels = torch.randn(8, DIM, 3, 3), torch.arange(8) % 4
    x = x - x.mean((2, 3), keepdim=True)
    model = nn.Sequential(layer, nn.Linear(layer.out_dim, 4))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(150):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0], losses[::30]


@every_layer
def test_autocast_keeps_the_dtype_and_nearly_the_values(name):
    layer = make(name).float()
    x = features(4, DIM, 5, 7).float().requires_grad_()
    expected = copy.deepcopy(layer).pool(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer.pool(x)
    assert out.pooled.dtype == torch.float32
    torch.testing.assert_close(out.pooled, expected.pooled, **TOLERANCE[torch.bfloat16])
    for got, wanted in ((out.weights, expected.weights), (out.attributes, expected.attributes)):
        if wanted is not None:
            torch.testing.assert_close(got, wanted, **TOLERANCE[torch.bfloat16])
            torch.testing.assert_close(got.sum(1), torch.ones(4), rtol=1e-5, atol=1e-5)
    out.pooled.sum().backward()
    assert x.grad.isfinite().all()


@every_layer
def test_half_precision_features_give_half_precision_vectors(name):
    layer = make(name).float().eval()
    x = features(4, DIM, 5, 7)
    expected = layer(x.float())
    pooled = layer.bfloat16()(x.bfloat16())
    assert pooled.dtype == torch.bfloat16
    torch.testing.assert_close(pooled.float(), expected, **TOLERANCE[torch.bfloat16])


@every_layer
def test_compiles_in_one_graph_for_more_than_one_size(name):
    torch.compiler.reset()
    layer = make(name)
    compiled = torch.compile(copy.deepcopy(layer), backend="aot_eager", fullgraph=True)
    for size in ((3, 5), (4, 2), (6, 7)):
        x = features(2, DIM, *size).requires_grad_()
        twin = x.detach().clone().requires_grad_()
        expected, pooled = layer(x), compiled(twin)
        torch.testing.assert_close(pooled, expected, **TOLERANCE[torch.float64])
        expected.square().sum().backward()
        pooled.square().sum().backward()
        torch.testing.assert_close(twin.grad, x.grad, **TOLERANCE[torch.float64])


@every_masked_layer
def test_compiles_in_one_graph_with_a_mask(name):
    torch.compiler.reset()
    layer = make(name).eval()
    x, mask = features(2, DIM, 3, 5), torch.ones(2, 3, 5, dtype=torch.bool)
    mask[0, :, 3:] = False
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask), layer(x, mask), **TOLERANCE[torch.float64])


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_exports_as_one_graph_for_maps_of_any_size(name):
    layer = make(name).eval()
    free = torch.export.Dim.DYNAMIC
    with torch.no_grad():
        program = torch.export.export(layer, (features(2, DIM, 6, 5),), dynamic_shapes=({0: free, 2: free, 3: free},))
        x = features(3, DIM, 4, 9)
        torch.testing.assert_close(program.module()(x), layer(x), **TOLERANCE[torch.float64])


@every_layer
def test_weights_travel_through_a_state_dict(name):
    layer, other = make(name, seed=0).eval(), make(name, seed=9).eval()
    x = features(2, DIM, 3, 4)
    assert not torch.allclose(other(x), layer(x))
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)


@every_layer
def test_wrong_features_are_refused_in_words(name):
    layer = make(name)
    with pytest.raises(ValueError, match=r"made for 8 channels.*got 9"):
        layer(features(2, DIM + 1, 3, 3))
    with pytest.raises(ValueError, match=r"map \[B, C, H, W\] or tokens"):
        layer(features(2, DIM))
    with pytest.raises(ValueError, match="nothing to pool"):
        layer(features(2, DIM, 0, 3))
    with pytest.raises(ValueError, match="floating point"):
        layer(torch.ones(2, DIM, 3, 3, dtype=torch.long))


@every_masked_layer
def test_wrong_masks_are_refused_in_words(name):
    layer, x = make(name), features(2, DIM, 3, 4)
    with pytest.raises(ValueError, match="mask must be boolean"):
        layer(x, torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match="mask must have shape"):
        layer(x, torch.ones(2, 4, 4, dtype=torch.bool))


@pytest.mark.parametrize("layer", [CBAM, DeLF, GSoP, OTP, SOLAR, NetVLAD, TFM])
@pytest.mark.parametrize("dim", [0, -3, 2.5, "8"])
def test_a_number_of_channels_that_is_none_is_refused(layer, dim):
    with pytest.raises(ValueError, match="dim"):
        layer(dim)
