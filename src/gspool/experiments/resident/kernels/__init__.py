"""Triton kernels of training on resident data; each has a plain version beside it that runs anywhere."""
