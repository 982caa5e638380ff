"""What the paper says of GSP beside other layers than average pooling: joined to two of them, and against DeLF."""

from __future__ import annotations

from collections.abc import Sequence

from gspool.experiments.benchmark.figures import paired_difference
from gspool.experiments.benchmark.store import Run, runs_by_arm
from gspool.experiments.paired import in_words, verdict

# What is compared, and with what: the paper says that the first is ahead of the second on every data set.
COMPARED = {
    "GMP+GSP less GMP": ("gmp+gsp", "gmp"),
    "GeMean+GSP less GeMean": ("gemean+gsp", "gemean"),
    "GSP less DeLF": ("gsp", "delf"),
}


def beside_layers(runs: Sequence[Run]) -> str:
    """Say how far GSP brings other layers, and how far it is ahead of DeLF, loss by loss, in pairs of runs."""
    by_arm = runs_by_arm(runs)
    said, words = [], []
    for what, (one, other) in COMPARED.items():
        told = []
        for loss in dict.fromkeys(run.asked["loss"] for run in runs):
            found = paired_difference(by_arm.get(f"{loss} {one}", []), by_arm.get(f"{loss} {other}", []))
            if found is not None:
                told.append(f"{loss} {in_words(found._asdict())}")
                words.append(verdict(found._asdict()))
        said += [f"{what} {', '.join(told)}"] if told else []
    if not said:
        return ""
    return (
        "The paper has GSP improve GMP and GeMean as well, and gain more than DeLF. In pairs of runs, points of MAP@R: "
        f"{'; '.join(said)}. On the promised side of 0 lie {words.count('ahead')} of {len(words)} intervals, on the "
        f"other {words.count('behind')}; against a layer that is itself behind GAP, that is no gain of GSP."
    )
