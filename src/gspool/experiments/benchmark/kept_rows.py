"""Rows of before a change that nothing makes any more, beside those of after it: what the change does to a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspool.experiments.benchmark.figures import paired_difference
from gspool.experiments.benchmark.pair_steps import mixed_steps_told
from gspool.experiments.benchmark.store import Run, runs_by_arm
from gspool.experiments.paired import folds_in_doubt, in_words

# Before every layer began with the embedding that GSP draws.
DRAWN_APART = "drawn apart"
# Before the step of training got kernels of its own.
EARLIER_STEP = "earlier step"


def is_kept(arm: Mapping[str, Any]) -> bool:
    """Say whether a row is of an earlier way of training, and no setting to choose.

    Example:
        >>> [is_kept({"variant": variant}) for variant in ("", "epsilon 20", "epsilon 20, earlier step")]
        [False, False, True]
    """
    return str(arm["variant"]).endswith((DRAWN_APART, EARLIER_STEP))


def draws_told(runs: Sequence[Run]) -> str:
    """Say how far two draws of the embedding are apart with average pooling, loss by loss; empty without such rows."""
    pairs = {loss: (f"{loss} gap", f"{loss} gap {DRAWN_APART}") for loss in _losses(runs)}
    apart = _differences(runs, pairs)
    if not apart:
        return ""
    explained = (
        "Every layer begins with the embedding that GSP draws from the same seed, where their shapes are the same. "
        "Rows *drawn apart* are GAP with an embedding of its own, from earlier."
    )
    mixed = mixed_steps_told(runs, [pairs[loss] for loss in apart])
    told = f"GAP with the draw of GSP less GAP with its own: {'; '.join(apart.values())}."
    return " ".join(part for part in (explained, told, mixed) if part)


def earlier_steps_told(runs: Sequence[Run]) -> str:
    """Say how far GSP is apart from itself where the same steps are rounded otherwise; empty without such rows."""
    if not any(run.asked["arm"].endswith(EARLIER_STEP) for run in runs):
        return ""
    explained = (
        "Rows that end in *earlier step* have the same settings, seeds and batches as the row of that name without it, "
        "from before the step of training got kernels of its own, which are meant to change its rounding alone."
    )
    pairs = {loss: (f"{loss} gsp", f"{loss} gsp {EARLIER_STEP}") for loss in _losses(runs)}
    apart = _differences(runs, pairs)
    if not apart:
        return explained
    told = {
        "GSP by the present step less GSP by the earlier one": apart,
        "The same on validation classes": _differences(runs, pairs, "validation"),
        "GSP by the earlier step less GAP": _differences(
            runs, {loss: (f"{loss} gsp {EARLIER_STEP}", f"{loss} gap") for loss in apart}
        ),
    }
    return " ".join([explained, *(f"{what}: {'; '.join(rows.values())}." for what, rows in told.items() if rows)])


def _losses(runs: Sequence[Run]) -> list[str]:
    return [*dict.fromkeys(run.asked["loss"] for run in runs)]


def _differences(runs: Sequence[Run], pairs: Mapping[str, tuple[str, str]], metric: str = "map@r") -> dict[str, str]:
    """Write for every loss how far the first of two rows is ahead of the second; losses that lack one are left out."""
    told, by_arm = {}, runs_by_arm(runs)
    for loss, (after, before) in pairs.items():
        found = paired_difference(by_arm.get(after, []), by_arm.get(before, []), metric)
        if found is not None:
            points = f"{in_words(found._asdict())}{folds_in_doubt(found._asdict())}"
            told[loss] = f"{loss} {points}, a single pair deviates by {found.std:.2f}"
    return told
