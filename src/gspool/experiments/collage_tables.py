"""Tables of the collage study from its record: MAP@R beside the paper's, paired differences, the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from gspool.evaluation.statistics import seed_difference, with_interval
from gspool.experiments.cifar_backbone import FLAVOURS
from gspool.experiments.collage_grid import (
    AROUND,
    AS_THE_PAPER,
    DISTILLED,
    FINE_TUNED,
    LOSSES,
    ROWS,
    START,
    TOGETHER,
    TUNED,
    ZSR,
    Training,
    tuned_name,
    variants,
)
from gspool.experiments.experiment import Record
from gspool.experiments.tables import cell, markdown_table, plus_minus

Cells = Mapping[tuple[str, str], Mapping[str, Any]]
# The paper's GSP is with the regularisation.
OURS = "GSP+ZSR"
COMPARED = ("GAP", "GSP", OURS)
# Setting, key of the record, backbone.
SETTINGS = (
    ("frozen", "frozen", FLAVOURS[0]),
    ("frozen, tuned", "tuned", FLAVOURS[0]),
    ("frozen, tuned, pre-activation", "tuned", FLAVOURS[1]),
    ("fine-tuned", "fine_tuned", FLAVOURS[0]),
    ("objects alone", "distilled", FLAVOURS[0]),
)
MOST_MOVED = 10
FURTHEST = 4
# Symbols of the paper; other settings keep their names.
SYMBOLS = {"zsr": "lambda", "prototypes": "m", "proxies": "rate of proxies x", "embedding_rate": "rate of embedding x"}


def cells_of(record: Record, table: str) -> Cells:
    """Return the cells of a table of the record by (row, loss)."""
    return {(row["row"], row["loss"]): row for row in record["value"][table]}


def difference(cells: Cells, one: str, other: str, loss: str, times: float = 1.0) -> str:
    """Write the paired difference of two rows over the seeds that both have; empty where there is none."""
    ours, theirs = (cells[name, loss]["by_seed"] if (name, loss) in cells else {} for name in (one, other))
    pairs = [ours[seed] - times * theirs[seed] for seed in ours if seed in theirs]
    return with_interval(seed_difference(pairs)) if pairs else ""


def paper_of(row: str, loss: str) -> float | None:
    """Return the paper's MAP@R of a row, without the backbone that names of tuned rows end in."""
    known = ROWS[row if row in ROWS else row.partition(",")[0]].paper
    return None if known is None else known[[*LOSSES].index(loss)]


def side_by_side(
    cells: Cells, names: Sequence[str], columns: Callable[[str, str], Mapping[str, Any]], paper: bool = True
) -> str:
    """Write MAP@R of both losses beside each other, the highest in bold; ``columns`` adds more for (row, loss)."""
    best = {loss: max((each["map@r"] for (_, own), each in cells.items() if own == loss), default=0) for loss in LOSSES}
    rows = []
    for name in names:
        row: dict[str, Any] = {"layer": name}
        for loss, shown in LOSSES.items():
            found = cells.get((name, loss))
            text = "" if found is None else plus_minus(found["map@r"], found["std"])
            row[shown] = f"**{text}**" if found is not None and found["map@r"] == best[loss] else text
            if paper:
                row[f"{shown}, paper"] = paper_of(name, loss)
            row |= {f"{shown}, {column}": value for column, value in columns(name, loss).items()}
        rows.append(row)
    return markdown_table(rows, ".2f", text_columns=1)


def pooling_table(record: Record) -> str:
    """Write the pooling table of the frozen backbone; differences are those to rows of GSP's embedding size."""
    cells = cells_of(record, "frozen")

    def to_ours(name: str, loss: str) -> dict[str, str]:
        other = name != OURS and "dim" not in ROWS[name].changes
        return {f"{OURS} − row": difference(cells, OURS, name, loss) if other else ""}

    return side_by_side(cells, tuple(ROWS), to_ours)


def weights_table(record: Record) -> str:
    """Write where the weights are: their share on the object's quarter (0.25 for GAP), their relative entropy."""
    cells = cells_of(record, "frozen")
    rows = []
    for name in ROWS:
        if any(cells.get((name, loss), {}).get("on_object") is not None for loss in LOSSES):
            row: dict[str, Any] = {"layer": name}
            for loss, shown in LOSSES.items():
                row |= {f"{shown}, {column}": text for column, text in _weights(cells, name, loss).items()}
            rows.append(row)
    return markdown_table(rows, text_columns=1)


def _weights(cells: Cells, name: str, loss: str) -> dict[str, str]:
    found = cells.get((name, loss), {})
    return {"on the object": cell(found.get("on_object"), ".2f"), "entropy": cell(found.get("entropy"), ".3f")}


def with_weights(table: str, names: Sequence[str], paper: bool, record: Record) -> str:
    """Write MAP@R of some rows, with the share on the object and the entropy."""
    cells = cells_of(record, table)
    return side_by_side(cells, names, partial(_weights, cells), paper)


def tuned_table(record: Record) -> str:
    """Write the table with the best settings by validation; differences are those within a backbone."""
    cells = cells_of(record, "tuned")
    flavours = {tuned_name(name, flavour): flavour for flavour in FLAVOURS for name in TUNED}

    def columns(name: str, loss: str) -> dict[str, str]:
        ours = tuned_name(OURS, flavours[name])
        other = "" if name == ours else difference(cells, ours, name, loss)
        return {f"{OURS} − row": other, **_weights(cells, name, loss)}

    return side_by_side(cells, [*flavours], columns)


def gain_table(record: Record) -> str:
    """Write how GSP compares with GAP, and what the regularisation adds, in every setting and with both losses."""
    rows = []
    for setting, table, flavour in SETTINGS:
        cells = cells_of(record, table)
        gap, without, ours = (tuned_name(name, flavour) for name in COMPARED)
        for loss, shown in LOSSES.items():
            known = (ours, loss) in cells
            times = known and (gap, loss) in cells
            rows.append(
                {
                    "backbone": setting,
                    "loss": shown,
                    "GSP − GAP": difference(cells, without, gap, loss),
                    f"{OURS} − GAP": difference(cells, ours, gap, loss),
                    f"{OURS} − 2 × GAP": difference(cells, ours, gap, loss, times=2),
                    f"{OURS} / GAP": f"{cells[ours, loss]['map@r'] / cells[gap, loss]['map@r']:.1f}" if times else "",
                    "paper": f"{(paper_of(OURS, loss) or 0.0) / (paper_of('GAP', loss) or 1.0):.1f}" if known else "",
                    f"{OURS} − GSP": difference(cells, ours, without, loss),
                }
            )
    return markdown_table(rows, text_columns=2)


def share_table(record: Record) -> str:
    """Write which share of GAP's MAP@R on the objects alone is reached on collages with the frozen backbone."""
    alone, cells = cells_of(record, "distilled"), cells_of(record, "frozen")

    def share(name: str, loss: str) -> str:
        known = (name, loss) in cells and ("GAP", loss) in alone
        return f"{100 * cells[name, loss]['map@r'] / alone['GAP', loss]['map@r']:.0f}" if known else ""

    rows = [{"loss": shown, **{f"{name}, %": share(name, loss) for name in COMPARED}} for loss, shown in LOSSES.items()]
    return markdown_table(rows, text_columns=1)


def sub_class_table(record: Record) -> str:
    """Write MAP@R where only images of the same CIFAR-100 class count as right."""
    cells = cells_of(record, "frozen")
    rows = [
        {"loss": shown, **{name: cells.get((name, loss), {}).get("by_sub_class") for name in COMPARED}}
        for loss, shown in LOSSES.items()
    ]
    return markdown_table(rows, ".2f", text_columns=1)


def distance_table(record: Record) -> str:
    """Write the mean distance from the paper's figures in points, and the rows that are furthest from them."""
    cells = cells_of(record, "frozen")
    rows = []
    for loss, shown in LOSSES.items():
        off = {
            name: cells[name, loss]["map@r"] - paper
            for name in ROWS
            if (name, loss) in cells and (paper := paper_of(name, loss)) is not None
        }
        most = sorted(off, key=lambda name: -abs(off[name]))[:FURTHEST]
        rows.append(
            {
                "loss": shown,
                "rows": len(off),
                "mean distance": f"{fmean(map(abs, off.values())):.1f}" if off else "",
                "furthest": ", ".join(f"{name} {off[name]:+.1f}" for name in most),
            }
        )
    return markdown_table(rows, text_columns=1)


def mean_distance(table: str, record: Record) -> str:
    """Write the mean distance from the paper over the cells that the frozen and the fine-tuned backbone share."""
    cells, both = cells_of(record, table), (cells_of(record, "frozen"), cells_of(record, "fine_tuned"))
    off = [
        abs(found["map@r"] - paper)
        for (name, loss), found in cells.items()
        if all((name, loss) in each for each in both) and (paper := paper_of(name, loss)) is not None
    ]
    return f"{fmean(off):.1f}" if off else "?"


def _reached(record: Record) -> dict[tuple[str, str, str], float]:
    return {(row["pooling"], row["loss"], row["variant"]): row["validation"] for row in record["value"]["search"]}


def search_table(loss: str, record: Record) -> str:
    """Write the single settings that moved GSP most on validation, and what they did to GAP."""
    reached = _reached(record)

    def moved(pooling: str) -> dict[str, float]:
        names = [each.name for each in variants(pooling, loss) if (pooling, loss, each.name) in reached]
        start = reached.get((pooling, loss, AS_THE_PAPER))
        return {} if start is None else {name: reached[pooling, loss, name] - start for name in names}

    gap, gsp = moved("gap"), moved("gsp")
    rows = [
        {
            "setting": name,
            "GSP, validation": f"{reached['gsp', loss, name]:.2f}",
            "GSP, points": f"{gsp[name]:+.2f}",
            "GAP, points": cell(gap.get(name), "+.2f"),
        }
        for name in sorted(gsp, key=lambda name: -abs(gsp[name]))[:MOST_MOVED]
    ]
    return markdown_table(rows, text_columns=1) if rows else "not run"


def best_table(record: Record) -> str:
    """Write the best validation of each layer, loss and backbone, the stages before it, and its settings."""
    reached, value = _reached(record), record["value"]
    rows = []
    for place, name in value["best"].items():
        pooling, loss, flavour = place.split()
        start, together, best = (
            reached.get((pooling, loss, each)) for each in (START[flavour], TOGETHER[flavour], name)
        )
        near = [key for key in reached if key[:2] == (pooling, loss) and key[2].startswith(AROUND[flavour])]
        rows.append(
            {
                "layer, loss, backbone": tuned_name(f"{pooling} {loss}".upper(), flavour),
                "the paper's settings": start,
                "what helped, together": together,
                "neighbours tried": len(near),
                "best": best,
                "settings of the best": settings_in_short(value["best_settings"][place]) or "the paper's",
            }
        )
    return markdown_table(rows, ".2f", text_columns=1) if rows else "not run"


def settings_in_short(asked: Mapping[str, Any]) -> str:
    """List the settings of a training that are not the paper's, without backbone and length.

    Example:
        >>> settings_in_short(Training("gsp", "c2", lr=0.00030000000000000003, options={"epsilon": 40.0}).asked())
        'lambda 0, lr 0.0003, epsilon 40'
    """
    training = Training(**asked)
    usual = Training(training.pooling, training.loss, zsr=ZSR if training.pooling == "gsp" else 0.0)
    plain, found = ({**vars(each), **each.layer_options} for each in (usual, training))
    return ", ".join(
        f"{SYMBOLS.get(name, name.replace('_', ' '))} {f'{value:g}' if isinstance(value, float) else value}"
        for name, value in found.items()
        if name not in ("options", "flavour", "seed", "epochs", "patience") and value != plain[name]
    )


TABLES: dict[str, Callable[[Record], str]] = {
    "pooling": pooling_table,
    "weights": weights_table,
    "gain": gain_table,
    "distance": distance_table,
    "distance_frozen": partial(mean_distance, "frozen"),
    "distance_fine_tuned": partial(mean_distance, "fine_tuned"),
    "sub_classes": sub_class_table,
    "search_c2": partial(search_table, "c2"),
    "search_pnca": partial(search_table, "pnca"),
    "best": best_table,
    "tuned": tuned_table,
    "objects_alone": partial(with_weights, "distilled", DISTILLED, False),
    "share_of_objects_alone": share_table,
    "fine_tuned": partial(with_weights, "fine_tuned", FINE_TUNED, True),
}
