"""Triton kernels for `gsp_pool` and `partial_transport`, beside the plain versions that they must equal.

In the order of a call: `dispatch` (whether kernels run, and how PyTorch sees them) -> `launch` (prepare and start
them), by `plan` (tiles, and the layout of what is kept) -> `forward`, with `distance` and `solve` -> `backward`.
`transport` serves `partial_transport`. Triton is imported when the first kernel runs.
"""
