"""The seeds of a result: a run of a few never drops those that were measured, and a page says which are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gspool.provenance import read_result


def seeds_to_write(path: Path, asked: Sequence[int], held: Callable[[int], bool]) -> tuple[int, ...]:
    """Give the seeds whose figures are written: those asked for, and those of the result there that are held still.

    Args:
        path: the result, which may not be there.
        asked: the seeds of this run.
        held: whether the trainings of a seed with the settings of this run are finished and at hand.

    Raises:
        ValueError: if the result has seeds that would be dropped.

    Example:
        >>> seeds_to_write(Path("no such result.json"), (3, 1), lambda seed: False)
        (1, 3)
    """
    before = read_result(path)["seeds"] if path.is_file() else []
    others = [seed for seed in before if seed not in asked]
    dropped = [seed for seed in others if not held(seed)]
    if dropped:
        every = ",".join(map(str, sorted({*asked, *before})))
        raise ValueError(
            f"{path} holds seeds {_listed(before)}, and a run of {_listed(asked)} would drop {_listed(dropped)}: their "
            f"trainings with these settings are not in the folder of --work. Make all of them with --seeds {every}, or "
            "write elsewhere with --results FOLDER"
        )
    return tuple(sorted({*asked, *others}))


def missing_seeds(there: Sequence[int], promised: Sequence[int]) -> str:
    """Name the promised seeds that a result does not have; nothing where it has all.

    Example:
        >>> missing_seeds([0, 2], (0, 1, 2, 3)), missing_seeds([0, 1], (0, 1))
        ('2 of 4 seeds (1, 3)', '')
    """
    left = [seed for seed in promised if seed not in there]
    return f"{len(left)} of {len(promised)} seeds ({_listed(left)})" if left else ""


def seeds_unfinished(path: Path, promised: Sequence[int]) -> str:
    """Name the promised seeds that the result of a file does not have; nothing where it has all."""
    return missing_seeds(read_result(path)["seeds"], promised)


def with_missing_seeds(section: str, there: Sequence[int], promised: Sequence[int], command: str) -> str:
    """Put a paragraph about the seeds that are missing before a section; the section as it is where none is.

    Example:
        >>> print(with_missing_seeds("Figures.", [0], (0, 1), "gspool reproduce tokens"))
        **Not whole yet.** Missing: 1 of 2 seeds (1); `gspool reproduce tokens` makes them.
        <BLANKLINE>
        Figures.
        >>> with_missing_seeds("Figures.", [0, 1], (0, 1), "gspool reproduce tokens")
        'Figures.'
    """
    left = missing_seeds(there, promised)
    return f"**Not whole yet.** Missing: {left}; `{command}` makes them.\n\n{section}" if left else section


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
