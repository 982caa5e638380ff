"""The sizes of a dictionary layer: so many prototypes, each with a vector of its own in the output."""

from __future__ import annotations

from typing import NamedTuple

# The paper's 128-dimensional setting is 8 x 16, its large one 64 x 128 (Supp. 1.3).
PAPER_TOKEN_DIM = 16


class DictionarySize(NamedTuple):
    """How many prototypes, how long the embedded tokens, how long the output: the product of both."""

    prototypes: int
    token_dim: int
    out_dim: int


def dictionary_size(prototypes: int, token_dim: int | None = None, out_dim: int | None = None) -> DictionarySize:
    """Complete the sizes: ``out_dim = prototypes * token_dim``, with 16 for a ``token_dim`` that nothing determines.

    Raises:
        ValueError: if a size is not a positive integer or the three do not fit each other.

    Example:
        >>> dictionary_size(prototypes=64, out_dim=8192)
        DictionarySize(prototypes=64, token_dim=128, out_dim=8192)
    """
    for name, value in (("prototypes", prototypes), ("token_dim", token_dim), ("out_dim", out_dim)):
        optional = value is None and name != "prototypes"
        if not optional and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a positive integer, got {value!r}")
    if token_dim is None:
        token_dim = PAPER_TOKEN_DIM if out_dim is None else out_dim // prototypes
    if out_dim is not None and out_dim != prototypes * token_dim:
        raise ValueError(
            f"the output holds one vector for each prototype: out_dim must be prototypes * token_dim, got out_dim "
            f"{out_dim} for {prototypes} prototypes of {token_dim} channels; change one of the three"
        )
    return DictionarySize(prototypes, token_dim, prototypes * token_dim)
