"""The range of seeds."""

from __future__ import annotations

# What NumPy and Lightning accept too, so that one seed works everywhere.
LARGEST_SEED = 2**32 - 1


def checked_seed(seed: int) -> int:
    """Return the seed if it is valid.

    Raises:
        ValueError: if it is not an integer, or out of the range that every generator accepts.

    Example:
        >>> checked_seed(2**80)
        Traceback (most recent call last):
        ValueError: a seed is a whole number from 0 to 4294967295, got 1208925819614629174706176
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"a seed is a whole number from 0 to {LARGEST_SEED}, got {seed!r}")
    return seed
