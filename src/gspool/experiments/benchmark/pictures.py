"""Which pictures of a benchmark the report shows, and what it says under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspool.experiments.benchmark.figures import maps_of
from gspool.experiments.benchmark.forest import forests
from gspool.experiments.benchmark.verdict import FEWEST
from gspool.experiments.pictured import pictured

INTERVALS = f"with the 95 % interval where there are {FEWEST} pairs or more, else open"
# By the end of the file's name: what is seen, and the caption.
PICTURES = {
    "_summary": (
        "Where each loss stands with GAP, and where GSP brings it",
        "As Figure 6 of the paper: MAP@R of single models by loss and layer of Table 2; dashed lines lead from GAP to "
        "the layer in its place. Bars are standard deviations over repeats, where there are several. Layers that lack "
        "repeats or folds stand as far from GAP as in the pairs that are there; marks that lack folds are open.",
    ),
    "_losses": (
        "How far GSP is ahead of GAP, loss by loss",
        f"Test MAP@R with GSP ahead of that with GAP, in pairs of runs, {INTERVALS}; diamonds are the paper's.",
    ),
    "_layers": (
        "How far other layers are ahead of GAP",
        f"The same for other layers, {INTERVALS}. Those of one pair are trained on the first fold alone.",
    ),
    "_settings": (
        "How far other settings of GSP are ahead of GAP",
        f"Other settings of GSP, on test classes {INTERVALS}; diamonds are means on the validation classes, which "
        "alone choose.",
    ),
    "": (
        "Validation against the step",
        "Validation MAP@R against the step, means over the folds and seeds that GAP and GSP share, for all that have "
        "these, up to the step that all runs of a line reached; the peak of a mean lies below the mean of each run's "
        "best.",
    ),
    "_looks": (
        "Mean weight of every place of the map",
        "Where layers look: what a place of the map weighs on average over the test images, after training, relative "
        "to equal weights; means over the runs that have kept it. Shown are GSP at the paper's settings with C2 and "
        "ProxyNCA++, where they have, and those with the highest weight of a place.",
    ),
}


def pictures_of(name: str, value: dict[str, Any]) -> dict[str, str]:
    """Show every picture that there are figures for, by the end of its file's name."""
    there = {"", "_summary", *(f"_{end}" for end in forests(value)), *(["_looks"] if maps_of(value["arms"]) else [])}
    return {
        end: pictured(f"{name}{end}.png", seen, told + (not_kept(value["arms"]) if end == "_looks" else ""))
        for end, (seen, told) in PICTURES.items()
        if end in there
    }


def not_kept(arms: Sequence[Mapping[str, Any]]) -> str:
    """Name the losses with which GSP at the paper's settings kept no map: it is not among those shown for that reason.

    Example:
        >>> arms = [("c2", None), ("ms", [1.0])]
        >>> print(not_kept([dict(loss=loss, pooling="gsp", variant="", mean_weights=kept) for loss, kept in arms]))
         No run of GSP at the paper's settings has with c2.
    """
    paper = [arm for arm in arms if arm["pooling"] == "gsp" and not arm["variant"]]
    missing = [arm["loss"] for arm in paper if not arm["mean_weights"]]
    return f" No run of GSP at the paper's settings has with {' and '.join(missing)}." if missing else ""
