"""What the draw of an embedding does: average pooling with the draw of GSP, and with one of its own."""

from __future__ import annotations

from collections.abc import Sequence

from gspool.experiments.benchmark.figures import paired_difference
from gspool.experiments.benchmark.pair_steps import mixed_steps_told
from gspool.experiments.benchmark.store import Run
from gspool.experiments.paired import in_words

# How a row is called that was trained before its embedding was that of GSP; nothing makes such rows any more.
DRAWN_APART = "drawn apart"
EXPLAINED = (
    "Every layer begins with the embedding that GSP draws from the same seed, where their shapes are the same. Rows "
    "*drawn apart* are GAP with an embedding of its own, from earlier."
)


def draws_told(runs: Sequence[Run]) -> str:
    """Say how far two draws of the embedding are apart with average pooling, loss by loss; empty without such rows."""
    found, arms = {}, []
    for loss in dict.fromkeys(run.asked["loss"] for run in runs):
        pair = (f"{loss} gap", f"{loss} gap {DRAWN_APART}")
        shared, apart = ([run for run in runs if run.asked["arm"] == name] for name in pair)
        difference = paired_difference(shared, apart)
        if difference is not None:
            found[loss] = difference
            arms.append(pair)
    if not found:
        return ""
    told = "; ".join(
        f"{loss} {in_words(each._asdict())}, a single pair deviates by {each.std:.2f}" for loss, each in found.items()
    )
    figures = f"GAP with the draw of GSP less GAP with its own: {told}."
    return " ".join(part for part in (EXPLAINED, figures, mixed_steps_told(runs, arms)) if part)
