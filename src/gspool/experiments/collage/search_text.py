"""What the search of the collage study says: which settings moved GSP, what was best, every variant tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspool.experiments.collage.recipe import Training
from gspool.experiments.collage.rows import BACKBONES
from gspool.experiments.collage.search import AS_THE_PAPER, TOGETHER, variants
from gspool.experiments.report import table

LOSS_NAMES = {"c2": "C2", "pnca": "PNCA"}


def search_text(value: Mapping[str, Any]) -> str:
    """Say what the search is, which settings moved GSP most, and what was best."""
    best = ", ".join(f"{_place(place)}: *{name}*" for place, name in value["best"].items())
    chosen = value.get("best_settings", {})
    then = "; then everything that helped, together" + (", and around the best of it" if chosen else "")
    said = [
        "One setting at a time away from the paper's, for GAP and GSP alike, one seed, judged on the validation "
        f"classes alone{then}. Best by validation: {best}."
    ]
    if chosen:
        said.append(
            "These settings, where they are not the paper's: "
            + "; ".join(f"{_place(place)}: {_different(asked)}" for place, asked in chosen.items())
            + "."
        )
    for loss, shown in LOSS_NAMES.items():
        reached = {
            row["variant"]: row["validation"]
            for row in value["search"]
            if (row["pooling"], row["loss"]) == ("gsp", loss)
        }
        start = reached.pop(AS_THE_PAPER, None)
        together = reached.get(TOGETHER)
        single = [each.name for each in variants("gsp", loss) if each.name in reached]
        if start is None or not single:
            continue
        moved = sorted(single, key=lambda name: abs(reached[name] - start), reverse=True)[:4]
        told = ", ".join(f"{name} ({reached[name] - start:+.1f})" for name in moved)
        joint = "" if together is None else f"; what helped, together: {together - start:+.1f}"
        said.append(f"What moved GSP most with {shown}, in points of validation MAP@R: {told}{joint}.")
    return "\n\n".join(said)


def search_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """List every variant with what it reached on validation classes."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(
            (row["pooling"], row["variant"]), {"layer": row["pooling"].upper(), "variant": row["variant"]}
        )
        line[LOSS_NAMES[row["loss"]]] = row["validation"]
    columns = ["layer", "variant", *LOSS_NAMES.values()]
    heads = {name: f"{name}, validation" for name in LOSS_NAMES.values()}
    ordered = sorted(lines.values(), key=lambda line: (line["layer"], line["variant"] != AS_THE_PAPER))
    return table([{heads.get(column, column): line.get(column, "") for column in columns} for line in ordered], ".2f")


def _place(place: str) -> str:
    """Name the layer, the loss, and the backbone where it is not the paper's."""
    pooling, loss, *flavour = place.split()
    return f"{pooling} {loss}".upper() + "".join(BACKBONES[each] for each in flavour)


def _different(asked: Mapping[str, Any]) -> str:
    """List the settings that are not the paper's; how long it learns is said elsewhere."""
    usual = Training(asked["pooling"], asked["loss"], epochs=asked["epochs"], patience=asked["patience"])
    plain = {**vars(usual), **usual.layer_options}
    found = {name: value for name, value in {**asked, **asked["options"]}.items() if name not in ("options", "flavour")}
    return ", ".join(f"{name} {value}" for name, value in found.items() if value != plain[name]) or "none"
