"""Start a compiled kernel at the cost of the driver's own launch.

Triton binds and inspects every argument anew in each call, which takes the host longer than the GPU needs for a small
problem. What those arguments turn on (sizes, strides, dtypes, alignment) is the same for every call of one kind, so
here it is looked at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Launch:
    """One kernel, one grid and all arguments that do not change from call to call.

    The first call compiles; later ones go straight to the compiled kernel. Whoever keeps a `Launch` promises that the
    tensors of all its calls agree in dtype, in alignment to 16 bytes and in being None.
    """

    __slots__ = ("_constants", "_fixed", "_grid", "_kernel", "_options", "_start")

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], fixed: tuple[int, ...], constants: dict[str, Any], warps: int
    ) -> None:
        self._kernel = kernel
        self._grid = (*grid, 1, 1)[:3]
        self._fixed = fixed
        self._constants = constants
        # Said, because Triton is about to change what it does unasked; the sums are more exact with fused additions.
        self._options = {"num_warps": warps, "enable_fp_fusion": True}
        self._start: Callable[..., None] | None = None

    def __call__(self, *changing: Tensor | float | None) -> None:
        """Launch with the kernel's first arguments: its tensors and the numbers that may differ in every call."""
        if self._start is not None:
            self._start(*changing, *self._fixed)
            return
        compiled = self._kernel[self._grid](*changing, *self._fixed, **self._constants, **self._options)
        # Triton's interpreter compiles nothing, and is asked again in every call.
        if compiled is not None:
            known = len(changing) + len(self._fixed)
            # A compiled kernel takes its constants by position and does not look at them.
            self._fixed += tuple(self._constants[name] for name in self._kernel.arg_names[known:])
            self._start = compiled[self._grid]
