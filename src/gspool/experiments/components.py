"""Table 1: what the zero-shot regularisation (ZSR) and GSP each contribute, and both together, with the C2 loss.

Paper, CUB, MAP@R of 128D models: neither 20.58, GSP alone 20.85, ZSR alone (mu = 1) 21.08, both 21.52.
Ours: results/components.json. The four means are in the paper's order; no single step is significant.

    gspool reproduce components --weights resnet50.safetensors --device cuda
    gspool reproduce components --quick

Cost: 24 trainings besides those of `benchmark`, which are shared through the folder of --work.
"""

from __future__ import annotations

from typing import Any

from gspool.experiments.experiment import Headline, Record
from gspool.experiments.retrieval_figures import (
    comparison,
    figures_of,
    joined_models,
    run_cells,
    runs_of,
    single_models,
    table,
)
from gspool.experiments.retrieval_paper import component_values
from gspool.experiments.retrieval_study import study_experiment
from gspool.experiments.retrieval_training import Variant

# With mu = 1 every token weighs the same, and the attributes are those of all of them.
VARIANTS = (
    Variant("c2", "gap"),
    Variant("c2", "gsp", "without zsr", changes={"loss.zsr": 0.0}),
    Variant("c2", "gsp", "mu 1", {"mu": 1.0}),
    Variant("c2", "gsp"),
)
NAMES = {"c2 gap": "neither", "c2 gsp without zsr": "GSP", "c2 gsp mu 1": "ZSR", "c2 gsp": "both"}
# From one row to another.
STEPS = (
    ("neither", "GSP"),
    ("neither", "ZSR"),
    ("GSP", "both"),
    ("ZSR", "both"),
    ("neither", "both"),
    ("GSP", "ZSR"),
)


def rows(record: Record) -> str:
    """Write Table 1, the paper's values beside ours."""
    value, found = record["value"], []
    for row in figures_of(value):
        joined, single = component_values(value["data"], row["variant"])
        part = NAMES[row["variant"]]
        found.append(
            {
                "ZSR": "✓" * (part in ("ZSR", "both")),
                "GSP": "✓" * (part in ("GSP", "both")),
                "MAP@R 128D": single_models(row, "map"),
                "paper": single,
                "MAP@R 512D": joined_models(row),
                "paper 512D": joined,
                **run_cells(row),
            }
        )
    return table(found, 2)


def steps(record: Record) -> str:
    """Write every step between two rows in pairs of runs, the paper's beside ours."""
    value, found = record["value"], list[dict[str, Any]]()
    runs = {NAMES[name]: own for name, own in runs_of(value).items()}
    paper = {part: component_values(value["data"], name)[1] for name, part in NAMES.items()}
    for before, after in STEPS:
        names = {"step": f"{after} − {before}", "paper": f"{paper[after] - paper[before]:+.2f}"}
        found += comparison(names, runs.get(after), runs.get(before))
    return table(found)


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Return MAP@R of single models for each of the four."""
    return [
        Headline(
            f"MAP@R 128D, {value['data']}, c2, {NAMES[row['variant']]}",
            f"{component_values(value['data'], row['variant'])[1]:.2f}",
            single_models(row, "map"),
        )
        for row in figures_of(value)
    ]


EXPERIMENT = study_experiment(
    "components",
    "fair",
    lambda _: VARIANTS,
    claim="zero-shot regularisation and GSP each improve average pooling, and both together improve it most",
    shows="Table 1",
    cost="24 trainings of CUB besides those of `benchmark`, each a few minutes of a GPU",
    tables={"rows": rows, "steps": steps},
    headlines=headlines,
)
