"""The kernels, line by line in Python: `test_kernels.py` runs this file with TRITON_INTERPRET=1."""

import functools
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from functional import kernel_cases as cases
from gspool.bench import Settings, measure, timing
from gspool.functional import gsp_pool, partial_transport
from gspool.functional.kernels import dispatch, distance_map, launch, plan, transport
from gspool.functional.product_distance import product_distance
from gspool.pooling import GSP
from oracle import pooled

pytestmark = [
    # NumPy speaks up where a GPU would quietly give the infinity or NaN that the kernels then leave out.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


@pytest.fixture(scope="session", autouse=True)
def language_is_patched_once():
    """Spare half of the time: Triton patches its language for the interpreter anew in every call of a function."""
    usual = interpreter._patch_lang

    @functools.cache
    def patched(function):
        usual(function)
        return SimpleNamespace(restore=lambda: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", patched)
        yield


@pytest.mark.parametrize("size", [(1, 1, 1, 1), (2, 7, 3, 5), (1, 63, 65, 17), (1, 130, 16, 33), (1, 9, 300, 8)])
@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 5.0), (0.97, 60.0), (0.01, 0.5)])
def test_weights_are_exact(size, mu, epsilon):
    cases.weights_are_exact(*size, mu, epsilon)


@pytest.fixture
def fresh_plans():
    """Plan every call anew: what a test has prescribed must not outlive it."""
    cases.forget_plans()
    yield
    cases.forget_plans()


@pytest.fixture(params=[False, True], ids=["whole", "sliced"])
def sliced(request, monkeypatch, fresh_plans):
    """Let problems of every size form their gradients slice by slice of the channels, or leave it to the rule."""
    if request.param:
        monkeypatch.setattr(plan, "slices_are_worth_it", cases.slices_fit)


@pytest.fixture
def sums(request, monkeypatch, fresh_plans):
    """Let tokens of every dtype and layout be summed by weight in one way."""
    monkeypatch.setattr(launch, "sums_of", lambda kind: request.param)


@pytest.mark.parametrize("law", cases.LAWS)
def test_laws(law, sliced):
    law()


@pytest.mark.parametrize("role", ["foreground", "background"])
@pytest.mark.parametrize("size", [(2, 7, 3, 5), (1, 130, 17, 34), (2, 20, 17, 140)])
def test_gradients_agree_with_the_plain_version(size, role, sliced):
    cases.agrees(*cases.problem(*size), role=role, mu=0.6)


@pytest.mark.parametrize("sums", ["product", "reduce"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
# Images of one tile, of three, and of three that the backward pass takes as two.
@pytest.mark.parametrize("size", [(2, 9, 5, 70), (1, 130, 6, 40), (1, 130, 3, 5)])
def test_both_ways_to_sum_tokens_agree_with_the_plain_version(sums, dtype, size):
    cases.agrees(*cases.problem(*size), dtype=dtype)
    cases.agrees(*cases.problem(*size), dtype=dtype, role="background", outputs="p")


# Float32 tokens that are not transposed are reduced, in `test_laws`.
@pytest.mark.parametrize(
    ("sums", "law"),
    [
        ("reduce", cases.channels_first_needs_no_copy),
        ("product", cases.channels_first_needs_no_copy),
        ("product", cases.padding_is_never_looked_at),
        ("product", cases.deterministic_runs_repeat),
    ],
    indirect=["sums"],
)
def test_both_ways_to_sum_tokens_obey_the_laws(sums, law):
    law()


@pytest.mark.parametrize("sums", ["product"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [50, 200])
def test_sums_by_product_keep_the_digits_of_float32(sums, dtype, tokens):
    """What the backward pass reads are float32 sums: a weight cut to bfloat16 or TF32 would show in them."""
    features, centres = cases.problem(2, tokens, 6, 40)
    features = features.to(dtype)
    inputs = (features, centres, None, 0.3, None, 5.0, None, False, "tf32x3", 2)
    vectors, weights, _, kept, _ = dispatch.pool_forward(*inputs)
    exact = torch.einsum("bn,bnd->bd", weights.double(), features.double())
    # The interpreter cuts to bfloat16 where a GPU rounds.
    rounding = {torch.float32: 1e-6, torch.bfloat16: 2**-7}[dtype]
    cases.close(vectors, exact, rounding, "pooled")
    if tokens == 200:
        layout = plan.layout_of(images=2, tokens=tokens, channels=40, prototypes=6, sums=2)
        images = kept[layout.images_at : layout.images_at + 2 * layout.image_stride].view(2, layout.image_stride)
        # Sums by slope of length D + M come first, then those by weight.
        by_weight = images[:, plan.IMAGE_ENTRIES.value + 46 :][:, :40]
        cases.close(by_weight, exact, 1e-6, "sums by weight")


def test_deterministic_gradients_of_the_tokens_alone_agree(sliced):
    features, centres = cases.problem(3, 20, 5, 17)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        tokens = features.clone().requires_grad_()
        gsp_pool(tokens, centres, 0.3, 5.0, backend="triton").pooled.square().sum().backward()
    finally:
        torch.use_deterministic_algorithms(before)
    usual = features.clone().requires_grad_()
    gsp_pool(usual, centres, 0.3, 5.0, backend="torch").pooled.square().sum().backward()
    cases.close(tokens.grad, usual.grad, 3e-5, "tokens")


def test_backward_can_be_asked_for_twice(sliced):
    tokens, prototypes = cases.problem(2, 9, 5, 12)
    tokens.requires_grad_()
    out = gsp_pool(tokens, prototypes, 0.3, 5.0, backend="triton").pooled.square().sum()
    first, second = (torch.autograd.grad(out, tokens, retain_graph=True)[0] for _ in range(2))
    assert first.equal(second)


def test_a_gradient_that_nobody_wants_is_not_formed():
    tokens, prototypes = cases.problem(1, 140, 5, 12)
    mu = torch.full((1,), 0.3, requires_grad=True)
    _, everything = cases.differentiated(tokens, prototypes, 0.3, 5.0, "triton", outputs="p")
    generator = torch.Generator().manual_seed(7)
    direction = torch.randn(1, 12, generator=generator, dtype=torch.float64)
    for wanted, expected in ((prototypes.requires_grad_(), everything[1]), (mu, everything[2])):
        out = gsp_pool(tokens, prototypes, mu, 5.0, backend="triton").pooled
        (gradient,) = torch.autograd.grad((out.double() * direction).sum(), wanted)
        cases.close(gradient, expected, 1e-5, "gradient")


def test_tensors_that_start_anywhere():
    tokens, prototypes = cases.problem(2, 9, 5, 13)
    shifted = torch.cat((tokens.new_zeros(1), tokens.flatten()))[1:].view(tokens.shape)
    first, second = (gsp_pool(t, prototypes, 0.3, 5.0, backend="triton").pooled for t in (tokens, shifted))
    torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-7)


def test_calls_whose_tensors_start_elsewhere_share_no_launch():
    """A kernel is compiled for where its tensors start, and reads past them elsewhere."""
    numbers = torch.zeros(100)
    straight, shifted = numbers[:12], numbers[1:13]
    settings = plan.Settings(None, 0.3, None, 5.0, None, False, "tf32x3")
    kinds = {
        plan.kind_of(tokens.view(1, 4, 3), prototypes.view(4, 3), settings)
        for tokens in (straight, shifted)
        for prototypes in (straight, shifted)
    }
    assert len(kinds) == 4


def come_back(change):
    """Let saved tensors come back in other memory, as the hooks of offloading may: they keep values and shape alone."""
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, change)


def shifted(tensor):
    return torch.cat((tensor.new_zeros(1), tensor.flatten()))[1:].view(tensor.shape)


@pytest.mark.parametrize("first", [True, False])
# What is kept of an image differs where one layout is sliced and the other is not: 70 tokens are two tiles, or one.
@pytest.mark.parametrize("rule", [lambda *_: False, lambda shape, strides, *_: strides[2] != 1])
def test_saved_tokens_may_come_back_in_another_layout(first, rule, monkeypatch, fresh_plans):
    monkeypatch.setattr(plan, "slices_are_worth_it", rule)
    features, prototypes = cases.problem(2, 70, 5, 12)
    tokens = (features.mT.contiguous().mT if first else features).requires_grad_()
    gradients, mask = [], torch.ones(2, 70, dtype=torch.bool)
    mask[0, 60:] = False
    # That of `save_on_cpu` makes every tensor contiguous.
    turned = come_back(lambda t: t.mT.contiguous().mT if t.shape == tokens.shape else t)
    for hooks in (nullcontext(), torch.autograd.graph.save_on_cpu(pin_memory=True) if first else turned):
        with hooks:
            out = gsp_pool(tokens, prototypes, 0.3, 5.0, mask, backend="triton").pooled
        gradients += torch.autograd.grad(out.square().sum(), tokens)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)


def test_saved_tensors_may_come_back_where_no_load_is_wide(monkeypatch):
    tokens, prototypes = cases.problem(2, 9, 5, 12)
    seen, usual = [], launch.plan_backward

    def look(kind, back):
        seen.append((kind.misaligned, back.misaligned))
        return usual(kind, back)

    monkeypatch.setattr(launch, "plan_backward", look)
    for hooks in (nullcontext(), come_back(shifted)):
        with hooks:
            out = gsp_pool(tokens.requires_grad_(), prototypes, 0.3, 5.0, backend="triton").pooled
        out.square().sum().backward()
    # Tokens and prototypes; after three gradients, the kept numbers and the clipped prototypes.
    assert seen == [(0, 0), (1 + 2, 8 + 16)]


@pytest.mark.parametrize("outputs", ["p", "w", "a"])
@pytest.mark.parametrize("tokens", [11, 140])
def test_each_output_has_its_own_gradient(tokens, outputs):
    cases.agrees(*cases.problem(2, tokens, 5, 9), outputs=outputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("size", "role"), [((2, 9, 5, 40), "background"), ((2, 70, 17, 70), "foreground")])
def test_half_precision(dtype, size, role, sliced):
    cases.agrees(*cases.problem(*size), dtype=dtype, role=role)


def test_half_precision_prototypes():
    tokens, prototypes = cases.problem(2, 9, 5, 40)
    out = gsp_pool(tokens.bfloat16(), prototypes.bfloat16(), 0.3, 5.0, backend="triton")
    truth = gsp_pool(tokens.bfloat16(), prototypes.bfloat16(), 0.3, 5.0, backend="torch")
    cases.close(out.weights, truth.weights, 2e-5, "weights")
    assert out.pooled.dtype == torch.bfloat16


def test_slope_is_that_of_the_oracle():
    """A finite difference of the bisected solution, along a random direction of all inputs."""
    tokens, prototypes = cases.problem(2, 8, 3, 5)
    _, gradients = cases.differentiated(tokens, prototypes, 0.4, 6.0, "triton", outputs="p")
    generator = torch.Generator().manual_seed(7)
    target = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    move_tokens = torch.randn(tokens.shape, generator=generator, dtype=torch.float64)
    move_prototypes = torch.randn(prototypes.shape, generator=generator, dtype=torch.float64)

    def loss(step):
        moved = pooled(
            tokens.double() + step * move_tokens,
            prototypes.double() + step * move_prototypes,
            0.4 + 0.1 * step,
            6.0 + step,
        )
        return float((moved[0] * target).sum())

    numeric = (loss(1e-5) - loss(-1e-5)) / 2e-5
    slopes = ((gradients[0] * move_tokens).sum(), (gradients[1] * move_prototypes).sum())
    analytic = float(sum(slopes) + 0.1 * gradients[2].sum() + gradients[3])
    assert analytic == pytest.approx(numeric, rel=1e-4)


@pytest.mark.parametrize(("mu", "epsilon"), [(1.0, 5.0), (0.2, 0.0)])
def test_mu_one_and_epsilon_zero_are_average_pooling(mu, epsilon):
    tokens, prototypes = cases.problem(2, 70, 5, 9)
    out = gsp_pool(tokens, prototypes, mu, epsilon, backend="triton")
    torch.testing.assert_close(out.weights, torch.full((2, 70), 1 / 70), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(out.pooled, tokens.mean(1), rtol=1e-5, atol=1e-6)
    cases.agrees(tokens, prototypes, mu=mu, epsilon=epsilon, outputs="p")


def test_each_image_has_its_own_mu():
    tokens, prototypes = cases.problem(3, 12, 5, 9)
    mu = torch.tensor([0.1, 0.5, 0.999])
    together = gsp_pool(tokens, prototypes, mu, 20.0, backend="triton").weights
    apart = [gsp_pool(tokens[i : i + 1], prototypes, float(mu[i]), 20.0, backend="triton").weights for i in range(3)]
    torch.testing.assert_close(together, torch.cat(apart), rtol=1e-5, atol=1e-6)


def test_images_too_large_for_one_block_are_solved_in_pieces(monkeypatch, fresh_plans):
    monkeypatch.setattr(launch, "ONE_BLOCK", 32)
    monkeypatch.setattr(transport, "ONE_BLOCK", 32)
    for mu in (0.2, 0.8, 1.0):
        cases.agrees(*cases.problem(2, 100, 5, 9), mu=mu, epsilon=30.0, slack=5.0, outputs="p")
    cases.transport_agrees(2, 3, 70)


def test_float16_overflows_to_infinity():
    cases.float16_overflows_to_infinity("triton")


def test_an_image_without_tokens_gives_zero_and_no_nan():
    tokens, prototypes = cases.problem(2, 6, 3, 5)
    mask = torch.tensor([[True] * 6, [False] * 6])
    inputs = (tokens, prototypes, None, 0.3, None, 5.0, mask, False, "tf32x3", 1)
    pooled_vectors, weights, attributes, *_ = dispatch.pool_forward(*inputs)
    assert pooled_vectors[1].eq(0).all()
    assert weights[1].eq(0).all()
    assert attributes[1].eq(0).all()


def test_an_empty_batch_stays_empty():
    out = gsp_pool(torch.zeros(0, 4, 3, requires_grad=True), torch.ones(2, 3), 0.3, 5.0, backend="triton")
    out.pooled.sum().backward()
    assert out.pooled.shape == (0, 3)


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 5, 7), (2, 70, 130), (3, 33, 65)])
def test_transport_agrees(size):
    cases.transport_agrees(*size)


@pytest.mark.parametrize("outputs", ["r", "p"])
def test_transport_with_mask_and_sharp_epsilon(outputs):
    cases.transport_agrees(2, 4, 40, mu=0.97, epsilon=80.0, masked=True, outputs=outputs)


@pytest.mark.parametrize("size", [(1, 1, 1, 1), (2, 7, 3, 5), (1, 70, 33, 20), (2, 40, 130, 40)])
def test_distances_agree(size):
    cases.distances_agree(*size)


@pytest.mark.parametrize("wanted", ["t", "w"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_distances_in_half_precision_with_one_gradient(dtype, wanted):
    cases.distances_agree(2, 20, 6, 33, dtype=dtype, wanted=wanted)


def test_deterministic_gradients_of_distances_agree():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        cases.distances_agree(130, 3, 4, 8)
    finally:
        torch.use_deterministic_algorithms(before)


def test_distances_of_an_empty_batch_are_empty():
    tokens, prototypes = torch.zeros(0, 4, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    distances = product_distance(prototypes, tokens, "triton")
    distances.sum().backward()
    assert (distances.shape, prototypes.grad.abs().sum()) == ((0, 2, 4), 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_distances_of_what_is_not_finite_are_nan(value):
    cases.distances_of_what_is_not_finite_are_nan(value)


def test_the_nearest_prototype_exists_even_for_nan(monkeypatch):
    """Comparisons with NaN are false: a GPU may find the smallest in the padding, where NumPy takes the first NaN."""
    usual = tl.argmin

    def as_on_a_gpu(squared, axis):
        return usual(tl.where(squared == squared, tl.minimum(squared, 1e30), float("inf")), axis)

    monkeypatch.setattr(tl, "argmin", as_on_a_gpu)
    tokens, prototypes = cases.problem(1, 4, 3, 5)
    tokens[0, 1] = float("nan")
    _, kept, _ = distance_map.distance_forward(tokens, prototypes, "tf32x3")
    nearest = kept[: plan.TOKEN_ROWS.value * 4].view(plan.TOKEN_ROWS.value, 4)[plan.NEAREST.value]
    assert nearest.max() <= 2


def test_gradients_of_distances_that_start_elsewhere_share_no_launch(fresh_plans):
    tokens, prototypes = cases.problem(1, 4, 3, 4)
    distances = product_distance(prototypes, tokens.requires_grad_(), "triton")
    other, factors = torch.zeros(3, requires_grad=True), torch.arange(1.0, 16.0)
    # What remains of a gradient after the first 3 numbers does not start at 16 bytes.
    for many, own in ((distances.flatten(), factors[3:]), (torch.cat((other, distances.flatten())), factors)):
        torch.autograd.grad((many * own).sum(), tokens, retain_graph=True)
    assert distance_map.plan_backward.cache_info().currsize == 2


def test_distances_of_subclasses_of_tensors_are_the_plain_version(monkeypatch):
    """They may have no data that a kernel could read; `gsp_pool` has an operator for them."""
    monkeypatch.delattr(distance_map, "distance_forward")
    tokens, prototypes = cases.problem(2, 5, 3, 4)
    wrapped = tokens.as_subclass(type("Wrapped", (torch.Tensor,), {}))
    assert torch.equal(product_distance(prototypes, wrapped, "triton"), product_distance(prototypes, tokens))


def test_groups_of_prototypes_agree():
    layer = GSP(12, prototypes=6, groups=3, mu=0.2, epsilon=10.0, backend="triton")
    features = cases.problem(2, 30, 6, 12)[0]
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[1, 20:] = False
    found = layer.pool(features, mask)
    layer.backend = "torch"
    for ours, plain in zip(found, layer.pool(features, mask), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_the_benchmark_compares_both_backends_once_both_can_run(monkeypatch):
    monkeypatch.setattr(timing, "WARM_UP", 0)  # a step of the interpreter takes seconds
    shape = {"batch": 2, "channels": 16, "sizes": ((2, 2),), "device": "cpu", "repeats": 1}
    measured = measure(Settings(layers=("gsp:prototypes=4",), backend="all", **shape))
    assert [row.backend for row in measured.rows] == [None, "torch", "triton"]
    assert [row.title for row in measured.rows[1:]] == ["gsp:prototypes=4 (torch)", "gsp:prototypes=4 (triton)"]
    assert measured.refused == []


def test_operators_keep_their_word():
    """Schema, shapes without data, and gradients of the operators that torch.compile sees."""
    tokens, prototypes = cases.problem(2, 6, 3, 5)
    inputs = (tokens.requires_grad_(), prototypes.requires_grad_(), None, 0.3, None, 5.0, None, False, "tf32x3", 1)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.gspool.pool_forward.default, inputs, test_utils=checks)
    cost = torch.rand(2, 3, 6, requires_grad=True)
    torch.library.opcheck(
        torch.ops.gspool.transport_forward.default, (cost, None, 0.3, None, 5.0, None), test_utils=checks
    )


def test_compiled_as_one_operator():
    tokens, prototypes = cases.problem(2, 6, 3, 5)
    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def pool(tokens, prototypes):
        return gsp_pool(tokens, prototypes, 0.3, 5.0, backend="triton").pooled

    def transport(cost):
        return partial_transport(cost, 0.3, 5.0, backend="triton").plan

    compiled = torch.compile(pool, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(tokens, prototypes), pool(tokens, prototypes), rtol=0, atol=0)
    cost = torch.rand(2, 3, 6)
    compiled = torch.compile(transport, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(cost), transport(cost), rtol=0, atol=0)
    assert sum("gspool.pool_forward" in target for target in seen) == 1
    assert sum("gspool.transport_forward" in target for target in seen) == 1


def test_gradient_through_aot_autograd():
    tokens, prototypes = cases.problem(2, 6, 3, 5)

    def loss(tokens, prototypes):
        return gsp_pool(tokens, prototypes, 0.3, 5.0, backend="triton").pooled.square().sum()

    found = []
    for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        inputs = [t.clone().requires_grad_() for t in (tokens, prototypes)]
        function(*inputs).backward()
        found.append([t.grad for t in inputs])
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(eager, compiled, rtol=1e-6, atol=1e-8)


def test_exported_programs_hold_no_kernel():
    class Pool(torch.nn.Module):
        def forward(self, tokens, prototypes):
            return gsp_pool(tokens, prototypes, 0.3, 5.0, backend="triton").pooled

    program = torch.export.export(Pool(), cases.problem(2, 6, 3, 5))
    assert "gspool" not in "".join(str(node.target) for node in program.graph.nodes)


def test_second_gradient_is_refused():
    tokens, prototypes = cases.problem(2, 6, 3, 5)
    tokens.requires_grad_()
    out = gsp_pool(tokens, prototypes, 0.3, 5.0, backend="triton")
    (gradient,) = torch.autograd.grad(out.pooled.square().sum(), tokens, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("tokens", "prototypes", "mu", "epsilon", "reason"),
    [
        (torch.zeros(1, 4, 3, dtype=torch.float64), torch.zeros(2, 3), 0.3, 5.0, "float32, bfloat16 and float16"),
        (torch.zeros(1, 4, 3), torch.zeros(1025, 3), 0.3, 5.0, "up to 1024 prototypes, got 1025"),
        (torch.zeros(1, 4, 3), torch.zeros(2, 3), 1.5, 5.0, "mu is the fraction of mass kept"),
        (torch.zeros(1, 4, 3), torch.zeros(2, 3), 0.5, -1.0, "epsilon multiplies the cost"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused(tokens, prototypes, mu, epsilon, reason):
    with pytest.raises(ValueError, match=reason):
        gsp_pool(tokens, prototypes, mu, epsilon, backend="triton")


@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_unknown_precision_of_distances_is_refused(backend):
    with pytest.raises(ValueError, match=r"precision must be one of .*fp8"):
        product_distance(torch.zeros(2, 3), torch.zeros(1, 4, 3), backend, "fp8")
