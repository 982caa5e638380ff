"""What the compiler makes of the kernels for an H100, on a machine without one: are loads and stores wide?"""

from __future__ import annotations

import re

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gspool.functional.kernels import dispatch, distance_map, launch
from gspool.functional.kernels.launch import Launch

POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
# Two bytes at a time to or from global memory.
NARROW = re.compile(r"\b(?:ld|st)\.global[\w.:]*\.[bu]16\b")
# A few numbers a tile may come one by one; a tile of tokens has 4,096.
A_FEW = 8


def compile_for_hopper(call: Launch, changing: tuple[object, ...]) -> str:
    """Compile one prepared launch as the first call on a GPU would, and give its PTX."""
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
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=call._options).asm["ptx"]


@pytest.fixture
def compiled(monkeypatch):
    """PTX of every kernel by its name, instead of its launch."""
    found: dict[str, str] = {}

    def take(call, *changing):
        found[call._kernel.fn.__name__] = compile_for_hopper(call, changing)

    monkeypatch.setattr(Launch, "__call__", take)
    plans = [getattr(each, name) for each in (launch, distance_map) for name in ("plan_forward", "plan_backward")]
    for prepare in plans:
        prepare.cache_clear()
    yield found
    for prepare in plans:
        prepare.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["channels first", "channels last"])
# 14 x 14 tokens lie side by side in runs that are whole multiples of 8 bytes, not of 16.
@pytest.mark.parametrize("size", [(2, 64, 14 * 14, 32), (2, 64, 8 * 8, 32)])
def test_tokens_and_their_gradients_never_move_two_bytes_at_a_time(compiled, size, layout, dtype):
    images, channels, tokens, prototypes = size
    if layout == "channels first":
        features = torch.empty(images, channels, tokens, dtype=dtype).transpose(1, 2)
    else:
        features = torch.empty(images, tokens, channels, dtype=dtype)
    inputs = (features, torch.empty(prototypes, channels), None, 0.3, None, 5.0, None, False, "tf32x3", 1)
    output = dispatch.pool_forward(*inputs)
    incoming = torch.empty(images, channels, dtype=dtype)
    dispatch.pool_backward(*inputs, *output[3:], incoming, None, None, True, True, False, False)
    found = distance_map.distance_forward(*inputs[:2], "tf32x3")
    distance_map.distance_backward(*inputs[:2], "tf32x3", *found, torch.empty_like(found[0]), True, True)
    assert {"pool_backward_kernel", "distance_map_kernel", "distance_gradient_kernel"} <= {*compiled}
    narrow = {name: len(NARROW.findall(ptx)) for name, ptx in compiled.items()}
    assert {name: count for name, count in narrow.items() if count > A_FEW} == {}
