"""What the search of the collage study says: which settings moved GSP, what helped together, what was best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gspool.experiments.collage.comparison import figure_of
from gspool.experiments.collage.names import BACKBONE_NAMES, BACKBONES
from gspool.experiments.collage.recipe import ZSR, Training
from gspool.experiments.collage.search import AROUND, AS_THE_PAPER, START, TOGETHER_WITH, variants
from gspool.experiments.experiment import NOT_RUN
from gspool.experiments.report import table

LOSS_NAMES = {"c2": "C2", "pnca": "PNCA"}
SHOWN = 10
# Names of settings as the paper has them; others are written as they are, without underscores.
NAMES = {"zsr": "lambda", "prototypes": "m", "proxies": "rate of proxies x", "embedding_rate": "rate of embedding x"}
Reached = Mapping[tuple[str, str, str], float]


def search_text(value: Mapping[str, Any]) -> str:
    """Say what the search is, which settings moved GSP most, what helped together, and what was best."""
    if not value["search"]:
        return NOT_RUN
    reached = {(row["pooling"], row["loss"], row["variant"]): row["validation"] for row in value["search"]}
    parts = [
        f"One setting at a time away from the paper's, one seed, judged by MAP@R on the validation classes alone: "
        f"{counted(reached)}. Then, with either backbone apart, what helped is put together, and what lies around the "
        f"best so far is tried. GSP starts without the regularisation: lambda = 0, and the paper's {ZSR:g} is one of "
        f"the settings tried. All {len(reached)} variants stand in results/collage.json under `search`.",
        deviations(value.get("frozen", [])),
        *(part for loss in LOSS_NAMES for part in movers(reached, loss)),
        together(reached),
        "Best by validation, with the settings that are not the paper's:",
        best_table(value, reached),
    ]
    return "\n\n".join(part for part in parts if part)


def counted(reached: Reached) -> str:
    """Count the single settings that were tried, for each layer and loss.

    Example:
        >>> counted({("gap", "c2", "as the paper"): 8.5, ("gap", "c2", "lr 1e-4"): 7.9})
        'GAP 1 with C2'
    """
    said = []
    for pooling in dict.fromkeys(pooling for pooling, _, _ in reached):
        counts = {shown: len(singles(reached, pooling, loss)) for loss, shown in LOSS_NAMES.items()}
        told = " and ".join(f"{count} with {shown}" for shown, count in counts.items() if count)
        said.append(f"{pooling.upper()} {told or 'none'}")
    return ", ".join(said)


def singles(reached: Reached, pooling: str, loss: str) -> dict[str, float]:
    """Give the variants with one setting changed: points of validation away from the paper's settings."""
    start = reached.get((pooling, loss, AS_THE_PAPER))
    if start is None:
        return {}
    names = [each.name for each in variants(pooling, loss) if (pooling, loss, each.name) in reached]
    return {name: reached[pooling, loss, name] - start for name in names}


def deviations(frozen: Any) -> str:
    """Say that one seed has no interval, and how much seeds differ, for differences of one to be seen beside it."""
    known = {shown: figure_of(frozen, "GSP", loss) for loss, shown in LOSS_NAMES.items()}
    said = [
        f"{each.std:.2f} with {shown} ({each.seeds} seeds)"
        for shown, each in known.items()
        if each is not None and each.std is not None
    ]
    if not said:
        return ""
    return (
        "One seed has no interval: the search ranks settings, and does not show one better than the next. For scale, "
        f"the standard deviation of GSP over seeds, on test, is {' and '.join(said)}; that of a difference of two "
        "independent trainings is 1.4 times as large."
    )


def movers(reached: Reached, loss: str) -> list[str]:
    """Give the table of the settings that moved GSP most, with what the same did to GAP."""
    moved, beside = singles(reached, "gsp", loss), singles(reached, "gap", loss)
    if not moved:
        return []
    most = sorted(moved, key=lambda name: -abs(moved[name]))[:SHOWN]
    start = reached["gsp", loss, AS_THE_PAPER]
    rows = [
        {
            "setting": name,
            "GSP, validation": f"{start + moved[name]:.2f}",
            "GSP, points": f"{moved[name]:+.2f}",
            "GAP, points": f"{beside[name]:+.2f}" if name in beside else "",
        }
        for name in most
    ]
    head = f"What moved GSP most with {LOSS_NAMES[loss]}, {len(most)} of {len(moved)} (it starts from {start:.2f}):"
    return [head, table(rows, "g")]


def together(reached: Reached) -> str:
    """Say what everything that helped GSP does together, with either backbone against the same one before."""
    said = []
    for loss, shown in LOSS_NAMES.items():
        told = []
        for flavour, name in BACKBONE_NAMES.items():
            start, joint = (reached.get(("gsp", loss, names[flavour])) for names in (START, TOGETHER_WITH))
            if start is not None and joint is not None:
                told.append(f"{name} {start:.2f} to {joint:.2f} ({joint - start:+.1f})")
        if told:
            said.append(f"with {shown} {', '.join(told)}")
    return f"What helped GSP, together: {'; '.join(said)}." if said else ""


def best_table(value: Mapping[str, Any], reached: Reached) -> str:
    """List the best of each layer, loss and backbone, the steps to it, and its settings."""
    rows = []
    for place, name in value["best"].items():
        pooling, loss, flavour = place.split()
        near = [key for key in reached if key[:2] == (pooling, loss) and key[2].startswith(AROUND[flavour])]
        steps = [reached.get((pooling, loss, each)) for each in (START[flavour], TOGETHER_WITH[flavour], name)]
        start, joint, best = ("" if step is None else f"{step:.2f}" for step in steps)
        rows.append(
            {
                "layer, loss, backbone": place_name(place),
                "the paper's settings": start,
                "what helped, together": joint,
                "variants around it": len(near),
                "best": best,
                "settings of the best": different(value["best_settings"][place]) or "the paper's",
            }
        )
    return table(rows, "g")


def place_name(place: str) -> str:
    """Name the layer, the loss, and the backbone where it is not the post-activation one.

    Example:
        >>> place_name("gsp c2 preactivation-bottleneck")
        'GSP C2, ResNet20 (pre-activation)'
    """
    pooling, loss, *flavour = place.split()
    return f"{pooling} {loss}".upper() + "".join(BACKBONES[each] for each in flavour)


def different(asked: Mapping[str, Any]) -> str:
    """List the settings that are not the paper's; the backbone and how long it learns are said elsewhere.

    Example:
        >>> different(Training("gsp", "c2", lr=0.00030000000000000003, options={"epsilon": 40.0}).asked())
        'lambda 0, lr 0.0003, epsilon 40'
    """
    pooling, loss = asked["pooling"], asked["loss"]
    usual = Training(pooling, loss, epochs=asked["epochs"], patience=asked["patience"])
    plain = {**vars(usual), **usual.layer_options, "zsr": ZSR if pooling == "gsp" else 0.0}
    found = {**asked, **asked["options"]}
    return ", ".join(
        f"{NAMES.get(name, name.replace('_', ' '))} {f'{value:g}' if isinstance(value, float) else value}"
        for name, value in found.items()
        if name not in ("options", "flavour", "seed") and value != plain[name]
    )
