"""Triton kernels for `gsp_pool` and `partial_transport`, beside the plain versions that they must equal.

In the order of the data: `clipped_prototypes` -> `measure`, `affinity` (distances, log-affinities) -> `root` (the
threshold) -> `whole_image` (all of it, for an image that fits one tile) or `tile_forward` and `image_shares` (for
larger ones), both with `weighted_sums` -> `pool_backward` with `image_gradient` and either `spread_gradient` or
`gradient_slices` -> `prototype_gradient`; `transport` serves `partial_transport`. `choice` says when they run, `tiling`
chooses the sizes, `pool_settings` says what calls have in common, `kept` where the forward pass leaves its numbers,
`launch` and the modules named after it start them, `pool_eager`, `pool_op` and `transport_op` show them to PyTorch.
Triton is imported when the first kernel runs.
"""
