"""The section about classification: the table beside the paper's figures, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from gspool.experiments.benchmark.tables import number, table
from gspool.experiments.experiment import Holds, Verdict, mean_and_deviation
from gspool.experiments.paired import in_words, interval, judged, seed_difference

# Accuracy, P@1 and MAP@R on ImageNet, in percent.
PAPER = {
    ("timm/resnetv2_50", "gap"): (75.26, 69.30, 41.18),
    ("timm/resnetv2_50", "gsp"): (76.53, 71.34, 42.58),
    ("timm/tf_efficientnetv2_b3", "gap"): (80.03, 79.23, 59.98),
    ("timm/tf_efficientnetv2_b3", "gsp"): (82.00, 80.80, 62.75),
}

# What the layer that is plainly called "gsp" in results and ledgers was trained with; the names of others say theirs.
USUAL = {"mu": 0.3, "epsilon": 5.0}
PAPER_COLUMNS = ("paper, ImageNet", "paper P@1", "paper MAP@R")
# What the pooled features are reduced to for P@1 and MAP@R in the paper.
PAPER_LDA = 512


def rendered(value: dict[str, Any]) -> str:
    """Write the table; the paper's values beside ours where it has some for the same network."""
    rows = []
    for name in dict.fromkeys(run["pooling"] for run in value["runs"]):
        own = [run for run in value["runs"] if run["pooling"] == name]
        paper = PAPER.get((value["backbone"], name), (None, None, None))
        entropy = sum(run["entropy"] or 0.0 for run in own) / len(own)
        rows.append(
            {
                "data": named_data(value["data"], value.get("images")),
                "network": value["backbone"],
                "pooling": f"{shown_name(name)}{' (chosen)' if name == value['chosen'] else ''}",
                "held out, %": spread([run["validation"] for run in own]),
                "accuracy, %": spread([run["accuracy"] for run in own]),
                PAPER_COLUMNS[0]: number(paper[0]),
                "P@1": spread([run["metrics"]["p@1"] for run in own]),
                PAPER_COLUMNS[1]: number(paper[1]),
                "MAP@R": spread([run["metrics"]["map@r"] for run in own]),
                PAPER_COLUMNS[2]: number(paper[2]),
                "entropy": number(entropy, ".4f"),
                "runs": str(len(own)),
            }
        )
    empty = {name for name in PAPER_COLUMNS if not any(row[name] for row in rows)}
    return table([{name: text for name, text in row.items() if name not in empty} for row in rows])


def named_data(data: str, images: str | None, between: str = " ") -> str:
    """Name the data: published ones have a name that says it all, folders the beginning of their fingerprint.

    Example:
        >>> named_data("cifar100", None), named_data("folder", "0123456789abcdef")
        ('cifar100', 'folder 01234567')
    """
    return data if images is None else f"{data}{between}{images[:8]}"


def shown_name(name: str) -> str:
    """Name a layer as tables do: with its mu and epsilon, also where its name in results has none.

    Example:
        >>> shown_name("gsp"), shown_name("gsp, mu 0.8, epsilon 5"), shown_name("gap")
        ('gsp, mu 0.3, epsilon 5', 'gsp, mu 0.8, epsilon 5', 'gap')
    """
    return ", ".join([name, *(f"{key} {number:g}" for key, number in USUAL.items())]) if name == "gsp" else name


def spread(values: Sequence[float]) -> str:
    """Write shares as percent: the mean, and the standard deviation of a sample (n - 1) where there are several.

    Example:
        >>> spread([0.5, 0.52]), spread([0.5])
        ('51.00 ± 1.41', '50.00 (one seed)')
    """
    percent = [100 * value for value in values]
    return mean_and_deviation(mean(percent), stdev(percent) if len(percent) > 1 else None)


def written(record: dict[str, Any]) -> str:
    """Write how it was done, the table, and what follows."""
    value = record["value"]
    learned = f"{100 * (1 - value['held_out']):g} % of the training images"
    said = (
        f"{learned} are learned from; mu and epsilon are *chosen* by the accuracy on the others. P@1 and MAP@R: "
        f"features reduced by LDA to {value['runs'][0]['lda_dim']} dimensions (paper: {PAPER_LDA}). Mean ± std "
        "(n - 1) over seeds."
    )
    return f"{said}\n\n{rendered(value)}\n\n{compared(value)}"


def gains(value: Mapping[str, Any]) -> dict[str, list[float]]:
    """Give how far the chosen GSP is ahead of average pooling on test images, in points, seed by seed."""
    by_seed = {(each["pooling"], each["seed"]): each for each in value["runs"]}
    pairs = [
        (by_seed["gap", seed], found)
        for (name, seed), found in by_seed.items()
        if name == value["chosen"] and ("gap", seed) in by_seed
    ]
    return {
        "accuracy": [100 * (gsp["accuracy"] - gap["accuracy"]) for gap, gsp in pairs],
        "MAP@R": [100 * (gsp["metrics"]["map@r"] - gap["metrics"]["map@r"]) for gap, gsp in pairs],
    }


def paper_gains() -> dict[str, list[float]]:
    """Give what GSP adds in the paper's two networks, in points.

    Example:
        >>> [f"{gain:.2f}" for gain in paper_gains()["accuracy"]]
        ['1.27', '1.97']
    """
    networks = [*dict.fromkeys(network for network, _ in PAPER)]
    return {
        name: [PAPER[network, "gsp"][place] - PAPER[network, "gap"][place] for network in networks]
        for name, place in (("accuracy", 0), ("MAP@R", 2))
    }


def compared(value: Mapping[str, Any]) -> str:
    """Compare the chosen GSP with average pooling, seed by seed, and its gain with the paper's.

    Example:
        >>> runs = [{"pooling": "gap", "seed": 0, "accuracy": 0.5, "metrics": {"map@r": 0.2}}]
        >>> runs += [{"pooling": "gsp", "seed": 0, "accuracy": 0.51, "metrics": {"map@r": 0.18}}]
        >>> compared({"chosen": "gsp", "runs": runs}).partition(" points")[0].partition(": ")[2]
        'accuracy +1.00 (one pair), MAP@R -2.00 (one pair)'
    """
    found = {name: seed_difference(values) for name, values in gains(value).items()}
    ours = ", ".join(f"{name} {in_words(each)}" for name, each in found.items())
    theirs = ", ".join(
        f"{' and '.join(f'{gain:+.2f}' for gain in each)} points of {name}" for name, each in paper_gains().items()
    )
    said = {
        "yes": "A gain is seen here too",
        "partly": "A gain is seen here in part",
        "no": "**It is not seen here**",
        "cannot tell": "Whether there is one here cannot be told",
    }[holds(found)]
    return (
        f"The chosen GSP against average pooling, in pairs by seed: {ours} points. The paper's gain on ImageNet is "
        f"{theirs}, in ResNetV2-50 and EfficientNetV2-B3. {said}."
    )


def holds(found: Mapping[str, dict[str, Any]]) -> Holds:
    """Judge the gains: "no" where every interval ends below the smaller of the paper's, though it may hold 0.

    Example:
        >>> small = seed_difference([-0.2, 0.0, 0.2])
        >>> holds({"accuracy": small, "MAP@R": small}), holds({"accuracy": seed_difference([0.1]), "MAP@R": small})
        ('no', 'cannot tell')
    """
    judgement = judged([*found.values()])
    paper = paper_gains()
    if judgement == "cannot tell" and all(
        each["pairs"] > 1 and interval(each)[1] < min(paper[name]) for name, each in found.items()
    ):
        return "no"
    return judgement


def seen(value: Mapping[str, Any]) -> Verdict:
    """Say whether the chosen GSP gains in accuracy and in MAP@R of its features, and by how much."""
    paired = gains(value)
    if not all(paired.values()):
        return Verdict("cannot tell", "average pooling and the chosen GSP share no seed")
    found = {name: seed_difference(values) for name, values in paired.items()}
    told = ", ".join(f"{name} {in_words(each)}" for name, each in found.items())
    least = ", ".join(f"{min(each):+.2f}" for each in paper_gains().values())
    return Verdict(holds(found), f"points gained: {told}; the paper's are {least} at least, on ImageNet")
