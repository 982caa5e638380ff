"""The section about classification: the table beside the paper's figures, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gspool.evaluation import mean_and_std
from gspool.experiments.benchmark.tables import number, spread_of_runs, table

# Accuracy, P@1 and MAP@R on ImageNet, in percent.
PAPER = {
    ("timm/resnetv2_50", "gap"): (75.26, 69.30, 41.18),
    ("timm/resnetv2_50", "gsp"): (76.53, 71.34, 42.58),
    ("timm/tf_efficientnetv2_b3", "gap"): (80.03, 79.23, 59.98),
    ("timm/tf_efficientnetv2_b3", "gsp"): (82.00, 80.80, 62.75),
}


def rendered(value: dict[str, Any]) -> str:
    """Write the table, the paper's values for the same network beside ours."""
    rows = []
    for name in dict.fromkeys(run["pooling"] for run in value["runs"]):
        own = [run for run in value["runs"] if run["pooling"] == name]
        means = mean_and_std([{name: run[name] for name in ("validation", "accuracy")} | run["metrics"] for run in own])
        paper = PAPER.get((value["backbone"], name), (None, None, None))
        ours = {key: {"mean": 100 * each.mean, "std": 100 * each.std} for key, each in means.items()}
        entropy = sum(run["entropy"] or 0.0 for run in own) / len(own)
        rows.append(
            {
                "data": value["data"],
                "network": value["backbone"],
                "pooling": f"{name} (chosen)" if name == value["chosen"] else name,
                "held out, %": spread_of_runs(ours["validation"], len(own)),
                "accuracy, %": spread_of_runs(ours["accuracy"], len(own)),
                "paper, ImageNet": number(paper[0]),
                "P@1": spread_of_runs(ours["p@1"], len(own)),
                "paper P@1": number(paper[1]),
                "MAP@R": spread_of_runs(ours["map@r"], len(own)),
                "paper MAP@R": number(paper[2]),
                "entropy": number(entropy, ".4f"),
                "runs": str(len(own)),
            }
        )
    return table(rows)


def written(record: dict[str, Any]) -> str:
    """Write the table, and how many numbers were compared."""
    value = record["value"]
    learned = f"{100 * (1 - value['held_out']):g} % of the training images"
    lda = f"LDA to {value['runs'][0]['lda_dim']} dimensions"
    said = (
        f"{learned} are learned from; mu and epsilon are *chosen* by the accuracy on the others. Features after {lda}, "
        f"one less than classes at most. {verdict(value)}"
    )
    return f"{said}\n\n{rendered(value)}"


def verdict(value: Mapping[str, Any]) -> str:
    """Compare the chosen GSP with average pooling, seed by seed, on test images.

    Example:
        >>> runs = [{"pooling": "gap", "seed": 0, "accuracy": 0.5, "metrics": {"map@r": 0.2}}]
        >>> runs += [{"pooling": "gsp", "seed": 0, "accuracy": 0.51, "metrics": {"map@r": 0.18}}]
        >>> verdict({"chosen": "gsp", "runs": runs})
        'The chosen GSP against average pooling, by seed: accuracy +1.00, MAP@R -2.00 points.'
    """
    by_seed = {(each["pooling"], each["seed"]): each for each in value["runs"]}
    pairs = [(by_seed["gap", seed], found) for (name, seed), found in by_seed.items() if name == value["chosen"]]
    right = ", ".join(f"{100 * (gsp['accuracy'] - gap['accuracy']):+.2f}" for gap, gsp in pairs)
    alike = ", ".join(f"{100 * (gsp['metrics']['map@r'] - gap['metrics']['map@r']):+.2f}" for gap, gsp in pairs)
    return f"The chosen GSP against average pooling, by seed: accuracy {right}, MAP@R {alike} points."
