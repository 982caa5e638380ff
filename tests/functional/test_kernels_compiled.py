"""What the compiler makes of the kernels for an H100, on a machine without one: are accesses wide, is there memory?"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gspool.functional.kernels import dispatch, distance_map, launch, plan
from gspool.functional.kernels.launch import Launch

POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
# Two bytes at a time to or from global memory.
NARROW = re.compile(r"\b(?:ld|st)\.global[\w.:]*\.[bu]16\b")
# A few numbers a tile may come one by one; a tile of tokens has 4,096.
A_FEW = 8
# Compute capability, and the shared memory that one block may ask for.
GPUS = {"H100": (90, 232_448), "A100": (80, 166_912)}


class Compiled(NamedTuple):
    """One kernel."""

    name: str
    ptx: str
    shared: int


def compile_for(capability: int, call: Launch, changing: tuple[object, ...]) -> Compiled:
    """Compile one prepared launch as the first call on a GPU would."""
    kernel = call._kernel
    values = dict(zip([each.name for each in kernel.params], (*changing, *call._fixed), strict=False))
    values |= call._constants
    types, constants, multiples = {}, {}, {}
    for place, each in enumerate(kernel.params):
        value = values[each.name]
        if isinstance(value, torch.Tensor):
            types[each.name], multiples[(place,)] = POINTERS[value.dtype], [["tt.divisibility", 16]]
        elif each.is_constexpr or value is None or value == 1:
            types[each.name], constants[(place,)] = "constexpr", value
        elif isinstance(value, float):
            types[each.name] = "fp32"
        else:
            types[each.name] = "i32"
            if value % 16 == 0:
                multiples[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=multiples)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=call._options)
    return Compiled(kernel.fn.__name__, made.asm["ptx"], made.metadata.shared)


@pytest.fixture
def gpu():
    return "H100"


@pytest.fixture
def compiled(monkeypatch, gpu):
    """Every kernel instead of its launch; none needs more shared memory than there is."""
    found: list[Compiled] = []
    capability, memory = GPUS[gpu]

    def take(call, *changing):
        found.append(compile_for(capability, call, changing))

    monkeypatch.setattr(plan, "has_memory", lambda device, needed: needed <= memory)

    monkeypatch.setattr(Launch, "__call__", take)
    plans = [getattr(each, name) for each in (launch, distance_map) for name in ("plan_forward", "plan_backward")]
    for prepare in plans:
        prepare.cache_clear()
    yield found
    for prepare in plans:
        prepare.cache_clear()
    assert [(each.name, each.shared) for each in found if each.shared > memory] == []


def launch_everything(features, prototypes):
    """Launch the kernels of both passes, of `gsp_pool` and of the distances."""
    inputs = (features, prototypes, None, 0.3, None, 5.0, None, False, "tf32x3", 1)
    pooled, *output = dispatch.pool_forward(*inputs)
    dispatch.pool_backward(*inputs, *output[2:], pooled, None, None, True, True, False, False)
    found = distance_map.distance_forward(features, prototypes, "tf32x3")
    distance_map.distance_backward(features, prototypes, "tf32x3", *found, torch.empty_like(found[0]), True, True)


def laid_out(images, tokens, channels, layout, dtype=torch.float32):
    """Return features without values, as tokens."""
    if layout == "channels first":
        return torch.empty(images, channels, tokens, dtype=dtype).transpose(1, 2)
    return torch.empty(images, tokens, channels, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["channels first", "channels last"])
# 14 x 14 tokens lie side by side in runs that are whole multiples of 8 bytes, not of 16.
@pytest.mark.parametrize("size", [(2, 64, 14 * 14, 32), (2, 64, 8 * 8, 32)])
def test_tokens_and_their_gradients_never_move_two_bytes_at_a_time(compiled, size, layout, dtype):
    images, channels, tokens, prototypes = size
    launch_everything(laid_out(images, tokens, channels, layout, dtype), torch.empty(prototypes, channels))
    expected = {"pool_backward_kernel", "distance_map_kernel", "distance_gradient_kernel"}
    assert expected <= {each.name for each in compiled}
    narrow = [(each.name, len(NARROW.findall(each.ptx))) for each in compiled]
    assert [(name, count) for name, count in narrow if count > A_FEW] == []


@pytest.mark.parametrize(
    ("gpu", "deterministic", "layout"),
    [("H100", False, "channels first"), ("H100", True, "channels last"), ("A100", True, "channels last")],
)
def test_exact_float32_of_many_prototypes_fits_shared_memory(compiled, deterministic, layout):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        launch_everything(laid_out(3, 14 * 14, 70, layout), torch.empty(100, 70))
    finally:
        torch.use_deterministic_algorithms(before)
    assert {each.name for each in compiled} >= {"pool_backward_kernel", "distance_gradient_kernel"}
