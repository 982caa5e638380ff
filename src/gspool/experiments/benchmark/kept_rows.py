"""Rows of before a change that nothing makes any more, beside those of after it: what the change does to a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gspool.experiments.benchmark.figures import paired_difference
from gspool.experiments.benchmark.pair_steps import mixed_steps_told
from gspool.experiments.benchmark.store import Run
from gspool.experiments.paired import in_words

# Before every layer began with the embedding that GSP draws.
DRAWN_APART = "drawn apart"
# Before the step of training got kernels of its own.
EARLIER_STEP = "earlier step"


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
    apart = _differences(runs, {loss: (f"{loss} gsp", f"{loss} gsp {EARLIER_STEP}") for loss in _losses(runs)})
    if not apart:
        return ""
    return (
        "Rows that end in *earlier step* have the same settings, seeds and batches as the row of that name without it, "
        "from before the step of training got kernels of its own, which round otherwise. GSP by the present step less "
        f"GSP by the earlier one: {'; '.join(apart.values())}."
    )


def _losses(runs: Sequence[Run]) -> list[str]:
    return [*dict.fromkeys(run.asked["loss"] for run in runs)]


def _differences(runs: Sequence[Run], pairs: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Write for every loss how far the first of two rows is ahead of the second; losses that lack one are left out."""
    told = {}
    for loss, names in pairs.items():
        after, before = ([run for run in runs if run.asked["arm"] == name] for name in names)
        found = paired_difference(after, before)
        if found is not None:
            told[loss] = f"{loss} {in_words(found._asdict())}, a single pair deviates by {found.std:.2f}"
    return told
