"""Triton kernels for `gsp_pool` and `partial_transport`, beside the plain versions that they must equal.

In the order of the data: `clipped_prototypes` -> `measure`, `affinity` (distances, log-affinities) -> `root` (the
threshold) -> `whole_image` (all of it, for an image that fits one tile) or `tile_forward` and `image_shares` (for
larger ones) -> `pool_backward` with `image_gradient` and `spread_gradient`, `prototype_gradient`; `transport` serves
`partial_transport`. `choice` says when they run, `tiling` chooses the sizes, `pool_launch` and `transport_launch` start
them, `pool_op` and `transport_op` show them to PyTorch as operators. Triton is imported when the first kernel runs.
"""
