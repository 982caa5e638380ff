"""Cifar Collage: an object of CIFAR-100 among three distractors, pooled by 21 layers (Figure 3 b, Supp. 2.2).

Classes of training, validation and test are disjoint. Paper: GAP 8.09 and GSP 22.68 MAP@R with the contrastive loss
(C2), 10.68 and 27.61 with ProxyNCA++ (PNCA). Ours: results/collage.json, docs/images/collage_table.png; the weights of
GSP over collages: docs/images/collage.png.

    gspool reproduce collage --root ~/data --device cuda --processes 14 --backend triton
    gspool reproduce collage --heads true ...    # heads of the frozen study: results/collage_heads.json, 15 minutes
    gspool reproduce collage --quick             # a stand-in for CIFAR-100, one minute

At most 392 trainings of a head on frozen feature maps, 24 of them of a whole ResNet20: the pooling table, the objects
alone, a fine-tuned backbone, a search of settings on validation classes, and a table at the best settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from gspool.evaluation.statistics import matched_difference, with_interval
from gspool.executor.grid import run_grid
from gspool.executor.run_store import Run, RunStore
from gspool.experiments.cifar import FLAVOURS, pretrain_missing, write_cifar100_stand_in
from gspool.experiments.collage_search import (
    AS_THE_PAPER,
    HEAD_ROWS,
    HEADS,
    HEADS_FILE,
    LOSSES,
    ROUNDS,
    best_table,
    changed,
    head_tries,
    search,
    search_table,
    single_variants,
    tuned_name,
)
from gspool.experiments.collage_training import TUNED_LR, ZSR, CollageWorker, Training, stitched
from gspool.experiments.experiment import Experiment, FromFile, Headline, Record, RunOptions, names_of
from gspool.experiments.plots import bars, legend_below, save, shown_places, subplots
from gspool.experiments.runs import missing_seeds, plain_runs, seeds_to_write
from gspool.experiments.tables import cell, markdown_table, mean_std, plus_minus
from gspool.files import write_atomic
from gspool.provenance import write_result

SEEDS = (0, 1, 2)
# The tables of the tiny version have these rows alone.
QUICK_ROWS = {"frozen": ("GAP", "GSP+ZSR"), "distilled": ("GAP",), "fine_tuned": ("GSP+ZSR",)}


class Row(NamedTuple):
    """A row of the pooling table: layer, settings, the paper's MAP@R with C2 and with PNCA where it has the row."""

    pooling: str
    changes: dict[str, Any]
    paper: tuple[float, float] | None = None


_LARGE = {"dim": 8192, "options": {"prototypes": 64}}
# "Evaluation of feature pooling methods", its first two columns. The paper's GSP is with the regularisation.
ROWS = {
    "CBAM": Row("cbam", {}, (7.87, 10.99)),
    "CroW": Row("crow", {}, (10.09, 11.48)),
    "DeLF": Row("delf", {}, (11.44, 24.83)),
    # GeMax's ridge of 1 assumes unit descriptors; those of this network have length 20.
    "GeMax": Row("gemax", {"features": "unit"}, (7.04, 7.83)),
    "GeMax, tokens as they are": Row("gemax", {}),
    "GeMean": Row("gemean", {}, (10.97, 10.60)),
    "GSoP": Row("gsop", {}, (11.15, 17.73)),
    "OTP-(8x16)": Row("otp", {}, (7.02, 11.55)),
    "OTP-(64x128)": Row("otp", _LARGE, (7.57, 11.79)),
    "SOLAR": Row("solar", {}, (17.30, 20.36)),
    "TFM-1": Row("tfm", {"options": {"layers": 1}}, (8.84, 10.83)),
    "TFM-2": Row("tfm", {"options": {"layers": 2}}, (16.48, 21.00)),
    "TFM-4": Row("tfm", {"options": {"layers": 4}}, (18.51, 21.56)),
    "TFM-8": Row("tfm", {"options": {"layers": 8}}, (18.18, 19.68)),
    "T-SMK": Row("tsmk", {}, (9.21, 13.15)),
    "VLAD-(8x16)": Row("vlad", {}, (21.73, 19.68)),
    "VLAD-(64x128)": Row("vlad", _LARGE, (22.52, 21.15)),
    "WELDON": Row("weldon", {}, (13.81, 20.38)),
    "GAP": Row("gap", {}, (8.09, 10.68)),
    "GMP": Row("gmp", {}, (9.53, 11.25)),
    "GMP+GAP": Row("gap+gmp", {}, (10.01, 11.85)),
    "GMP+GSP": Row("gmp+gsp", {}),
    "GeMean+GSP": Row("gemean+gsp", {}),
    "GSP": Row("gsp", {}),
    "GSP+ZSR": Row("gsp", {"zsr": ZSR}, (22.68, 27.61)),
}
DISTILLED = ("GAP", "GSP")
FINE_TUNED = ("GAP", "GMP", "GSP", "GSP+ZSR")
TUNED = ("GAP", "DeLF", "GeMean+GSP", "GSP", "GSP+ZSR")

# By row, loss and seed.
Trainings = dict[tuple[str, str, int], Training]


def paper_tables(
    seeds: tuple[int, ...], epochs: int = 15, patience: int = 6, fine_tuned: int = 8
) -> dict[str, Trainings]:
    """Return the trainings of the tables at the paper's settings; ``fine_tuned`` limits the passes of fine-tuning.

    Example:
        >>> {name: len(table) for name, table in paper_tables((0, 1, 2)).items()}
        {'frozen': 150, 'distilled': 12, 'fine_tuned': 24}
    """

    def table(names: Iterable[str], **changes: Any) -> Trainings:
        return {
            (name, loss, seed): changed(
                Training(ROWS[name].pooling, loss, seed, epochs=epochs, patience=patience), ROWS[name].changes, changes
            )
            for name in names
            for loss in LOSSES
            for seed in seeds
        }

    return {
        "frozen": table(ROWS),
        "distilled": table(DISTILLED, data="distilled"),
        "fine_tuned": table(FINE_TUNED, backbone="fine-tuned", lr=TUNED_LR, epochs=fine_tuned),
    }


def tuned_trainings(best: Mapping[tuple[str, str, str], Training], seeds: tuple[int, ...]) -> Trainings:
    """Return GAP and GSP at the best settings of the search, by (pooling, loss, flavour), for every seed.

    DeLF and GeMean+GSP, which lead at the paper's settings, are trained at GSP's settings as far as they apply.
    """
    table: Trainings = {}
    for (pooling, loss, flavour), training in best.items():
        rows = {"GAP": training}
        if pooling == "gsp":
            rows = {
                "GSP": replace(training, zsr=0.0),
                "GSP+ZSR": replace(training, zsr=training.zsr or ZSR),
                "GeMean+GSP": replace(training, pooling="gemean+gsp", zsr=0.0),
                "DeLF": replace(training, pooling="delf", options={}, zsr=0.0),
            }
        for name, settings in rows.items():
            table |= {(tuned_name(name, flavour), loss, seed): replace(settings, seed=seed) for seed in seeds}
    return table


@dataclass(frozen=True)
class CollageSettings:
    """Options of the collage study.

    Args:
        backend: how GSP is computed: "torch", or "triton" on a GPU; see gspool.functional.gsp_pool.
        epochs: passes over the collages at most.
        patience: passes without a better validation before a training stops.
        fine_tuned_epochs: passes at most where the backbone learns too.
        heads: train the heads of the frozen study instead, alone and with the network tuned after them.
        layers: which of these heads, with commas between; all if none are named.
    """

    backend: str = "torch"
    epochs: int = 15
    patience: int = 6
    fine_tuned_epochs: int = 8
    heads: bool = False
    layers: str = ""


class CollageRun:
    """A run of the study: its options, its finished trainings, its clock."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        chosen = options.settings or CollageSettings()
        self.settings = replace(chosen, epochs=1, patience=1, fine_tuned_epochs=1) if options.quick else chosen
        self.usual: dict[str, Any] = {"epochs": self.settings.epochs, "patience": self.settings.patience}
        self.root = write_cifar100_stand_in(options.work / "stand-in", 1, 1) if options.quick else options.root
        self.folder = options.work / "collage"
        libraries = ("pytorch-metric-learning",)
        # The result of the heads holds its runs; that of the tables is not trained again from a clone.
        result = options.results / f"{HEADS_FILE}.json" if self.settings.heads else None
        self.store = RunStore(self.folder / "runs.jsonl", result, device=options.device, libraries=libraries)
        self.started, self.failures = time.monotonic(), list[str]()
        self.worker = partial(CollageWorker, self.root, self.folder, options.device, self.settings.backend)

    def tables(self, seeds: tuple[int, ...]) -> dict[str, Trainings]:
        """Return the trainings of the tables at the paper's settings; a few of them for the tiny version."""
        tables = paper_tables(seeds, **self.usual, fine_tuned=self.settings.fine_tuned_epochs)
        if not self.options.quick:
            return tables
        return {
            name: {key: each for key, each in table.items() if key[0] in QUICK_ROWS[name] and key[1] == "pnca"}
            for name, table in tables.items()
        }

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time limit, 0 after it; None where there is none."""
        limit = self.options.seconds
        return max(limit - (time.monotonic() - self.started), 0.0) if limit else None

    def train(self, what: str, trainings: Mapping[Any, Training]) -> dict[Any, dict[str, Any]]:
        """Make what is missing while there is time, and return what is finished by the same keys.

        Failures are kept for the end, so that the rest is made and written first.
        """
        # Every row once before any row twice, and fine-tuning last; one backbone after the other, for its maps.
        order = sorted(
            trainings.values(), key=lambda each: (each.backbone != "frozen", each.seed, each.data, each.flavour)
        )
        # The paper's settings are part of a table and of the search.
        once = {str(each.asked()): each.asked() for each in order}
        missing = [asked for asked in once.values() if self.store.get(asked) is None]
        print(f"{what}: {len(once)} trainings, {len(missing)} of them missing", flush=True)
        left = self.seconds_left
        if missing and left != 0:
            try:
                run_grid(self.store, missing, self.worker, self.options.executor, left or 0.0)
            except RuntimeError as failed:
                self.failures.append(f"{what}: {failed}")
        return self.finished(trainings)

    def finished(self, trainings: Mapping[Any, Training]) -> dict[Any, dict[str, Any]]:
        """Return what is finished, by the same keys."""
        found = {key: self.store.get(training.asked()) for key, training in trainings.items()}
        return {key: each for key, each in found.items() if each is not None}

    def write(self, name: str, value: Mapping[str, Any], seeds: Sequence[int], runs: Sequence[Run]) -> None:
        """Write a result of runs; without any, it must not replace one that has some."""
        if runs:
            path, command = self.options.results / f"{name}.json", EXPERIMENT.command(self.options, seeds)
            write_result(path, value, command=command, seeds=seeds, origins=[run.origin for run in runs])
        elif not self.failures:
            raise ValueError("time ran out before any training ended, nothing was written; give more --seconds")

    def raise_failures(self) -> None:
        """Raise what failed, after the rest is written."""
        if self.failures:
            raise RuntimeError("; ".join(self.failures))


def run(options: RunOptions) -> None:
    """Do all of the study, or what of it is missing, and write its result."""
    study = CollageRun(options)
    if study.settings.heads:
        return train_heads(study)

    def held(seed: int) -> bool:
        return all(len(study.finished(table)) == len(table) for table in study.tables((seed,)).values())

    seeds = seeds_to_write(options.results / "collage.json", options.seeds_or(SEEDS), held)
    # No training of the tiny version starts from the second backbone.
    backbones = pretrain_missing(FLAVOURS[:1] if options.quick else FLAVOURS, study.root, study.folder, options)
    tables, first = study.tables(seeds), single_variants(**study.usual)
    if options.quick:
        first = {key: each for key, each in first.items() if key[2] in (AS_THE_PAPER, "lr 1e-2")}
    # All that depends on nothing at once, so that no process waits for the last training of a table.
    ready = [*(each for table in tables.values() for each in table.values()), *first.values()]
    study.train("the paper's settings and single changes", dict(enumerate(ready)))
    tried, best = search(partial(study.train, "search"), first, 0 if options.quick else ROUNDS)
    chosen = {place: training for place, (_, training) in best.items()}
    tables["tuned"] = {} if options.quick else tuned_trainings(chosen, seeds)
    study.train("the best settings", tables["tuned"])
    made = {name: study.finished(table) for name, table in tables.items()}
    maps = study.folder / "weights.safetensors"
    if not maps.is_file() and study.seconds_left != 0 and not study.failures:
        write_shown_weights(study.worker(), Training("gsp", "pnca", zsr=ZSR, **study.usual), maps)
    value = {
        "backbones": backbones,
        **study.usual,
        "fine_tuned_epochs": study.settings.fine_tuned_epochs,
        "best": {" ".join(place): name for place, (name, _) in best.items()},
        "best_settings": {" ".join(place): training.asked() for place, training in chosen.items()},
        "search": search_rows(study.finished(tried)),
        **{name: summary_rows(found, seeds) for name, found in made.items()},
        "unfinished": {name: len(table) - len(made[name]) for name, table in tables.items()},
        "trainings": len(study.store.runs()),
        "seconds": round(time.monotonic() - study.started),
    }
    study.write("collage", value, seeds, study.store.runs() if any(made.values()) else ())
    if maps.is_file() and find_spec("matplotlib") is not None:
        draw_weights(maps, options.images / "collage.png")
    study.raise_failures()


def train_heads(study: CollageRun) -> None:
    """Make the tries of the heads with the first seed, then the best of every row with all seeds."""
    options, seeds = study.options, study.options.seeds_or(SEEDS)
    layers = names_of(study.settings.layers, "layers", HEADS) or (("GAP", "GSP") if options.quick else (*HEADS,))
    pretrain_missing(FLAVOURS[:1], study.root, study.folder, options)
    tries = head_tries(seeds[0], study.usual, study.settings.fine_tuned_epochs)
    chosen = {key: own for key, own in tries.items() if key[0].partition(",")[0] in layers}
    study.train("tries", {(*key, number): each for key, own in chosen.items() for number, each in enumerate(own)})
    final: Trainings = {}
    for key, own in tries.items():
        if reached := {number: found["validation"] for number, found in study.finished(dict(enumerate(own))).items()}:
            best = own[max(reached, key=reached.__getitem__)]
            final |= {(*key, seed): replace(best, seed=seed) for seed in seeds}
    study.train("every seed", {key: each for key, each in final.items() if key[:2] in chosen})
    # Rows of earlier calls with other layers stay.
    runs = [run for run in study.store.runs() if run.asked.get("start") == "frozen"]
    value = {
        **study.usual,
        "fine_tuned_epochs": study.settings.fine_tuned_epochs,
        "heads": summary_rows(study.finished(final), seeds),
        "runs": plain_runs(runs),
    }
    study.write(HEADS_FILE, value, seeds, runs)
    study.raise_failures()


def summary_rows(found: Mapping[tuple[str, str, int], Mapping[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Average over seeds: a row a layer and loss, figures in percent, with those of every seed."""
    rows = []
    for name, loss in dict.fromkeys(key[:2] for key in found):
        runs = {seed: found[name, loss, seed] for seed in seeds if (name, loss, seed) in found}
        mean, std = mean_std([100 * run["map@r"] for run in runs.values()])
        rows.append(
            {
                "row": name,
                "loss": loss,
                "map@r": mean,
                "std": std,
                "by_seed": {str(seed): round(100 * run["map@r"], 2) for seed, run in runs.items()},
                "p@1": round(100 * fmean(run["p@1"] for run in runs.values()), 2),
                "validation": round(100 * fmean(run["validation"] for run in runs.values()), 2),
                **_means([*runs.values()]),
            }
        )
    return rows


def search_rows(found: Mapping[tuple[str, str, str], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row a variant of the search: its figure on validation classes, and on test classes afterwards."""
    return [
        {
            "pooling": pooling,
            "loss": loss,
            "variant": name,
            "validation": round(100 * run["validation"], 2),
            "test": round(100 * run["map@r"], 2),
            **_means([run]),
        }
        for (pooling, loss, name), run in found.items()
    ]


def _means(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    found = {}
    for name, scale in (("entropy", 1), ("on_object", 1), ("by_sub_class", 100)):
        values = [scale * run[name] for run in runs if run.get(name) is not None]
        found[name] = round(fmean(values), 4) if values else None
    return found


def missing(record: Record) -> str:
    """Return the trainings and seeds that a result lacks; empty where it is complete."""
    left = [f"{count} trainings of {name}" for name, count in record["value"]["unfinished"].items() if count]
    return ", ".join([*left, *filter(None, [missing_seeds(SEEDS)(record)])])


Cells = Mapping[tuple[str, str], Mapping[str, Any]]
# The paper's GSP is with the regularisation.
OURS = "GSP+ZSR"
COMPARED = ("GAP", "GSP", OURS)
MEAN, PAPER, ON_OBJECT, ENTROPY = "", "paper", "on the object", "entropy"
LESS_ROW, LESS_GAP = f"{OURS} − row", "row − GAP"
FURTHEST = 4


def cells_of(record: Record, table: str) -> Cells:
    """Return the cells of a table of the record by (row, loss)."""
    return {(row["row"], row["loss"]): row for row in record["value"][table]}


def difference(cells: Cells, one: str, other: str, loss: str, times: float = 1.0) -> str:
    """Write the paired difference of two rows over the seeds that both have; empty where there is none."""
    ours, theirs = (cells[name, loss]["by_seed"] if (name, loss) in cells else {} for name in (one, other))
    return with_interval(matched_difference(ours, {seed: times * each for seed, each in theirs.items()}))


def paper_of(name: str, loss: str) -> float | None:
    """Return the paper's MAP@R of a row, whose name may go on with a backbone."""
    row = ROWS.get(name.partition(", ResNet20")[0])
    return row.paper[[*LOSSES].index(loss)] if row and row.paper else None


def layer_table(table: str, names: Sequence[str], columns: Sequence[str], record: Record) -> str:
    """Write a row a layer, and each column for both losses; layers without any value are left out, unless all are.

    Differences are those of rows with the same backbone and embedding size.
    """
    cells = cells_of(record, table)
    best = {loss: max((each["map@r"] for (_, own), each in cells.items() if own == loss), default=0) for loss in LOSSES}

    def value(name: str, loss: str, column: str) -> Any:
        found = cells.get((name, loss), {})
        layer, comma, backbone = name.partition(", ") if name not in ROWS else (name, "", "")
        if column == MEAN and found:
            text = plus_minus(found["map@r"], found["std"])
            return f"**{text}**" if found["map@r"] == best[loss] else text
        if column == PAPER:
            return paper_of(name, loss)
        if column == LESS_ROW:
            same = layer != OURS and "dim" not in ROWS[layer].changes
            return difference(cells, OURS + comma + backbone, name, loss) if same else ""
        if column == LESS_GAP:
            return difference(cells, name, "GAP" + comma + backbone, loss) if layer != "GAP" else ""
        key, digits = {ON_OBJECT: ("on_object", ".2f"), ENTROPY: ("entropy", ".3f")}.get(column, ("", ""))
        return cell(found.get(key), digits)

    headings = [
        (loss, column, f"{shown}, {column}" if column else shown)
        for loss, shown in LOSSES.items()
        for column in columns
    ]
    rows = [
        {"layer": name, **{heading: value(name, loss, column) for loss, column, heading in headings}} for name in names
    ]
    return markdown_table([row for row in rows if any([*row.values()][1:])] or rows, ".2f", text_columns=1)


def gain_table(record: Record) -> str:
    """Write how GSP compares with GAP, and what the regularisation adds, in every setting and with both losses."""
    settings = (
        ("frozen", "frozen", FLAVOURS[0]),
        ("frozen, tuned", "tuned", FLAVOURS[0]),
        ("frozen, tuned, pre-activation", "tuned", FLAVOURS[1]),
        ("fine-tuned", "fine_tuned", FLAVOURS[0]),
        ("objects alone", "distilled", FLAVOURS[0]),
    )
    rows = []
    for setting, table, flavour in settings:
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


def loss_table(heading: str, value: Callable[[Record, str, str], Any], record: Record) -> str:
    """Write a row a loss, and a value for each of the compared layers."""
    rows = [
        {"loss": shown, **{heading.format(name): value(record, name, loss) for name in COMPARED}}
        for loss, shown in LOSSES.items()
    ]
    return markdown_table(rows, ".2f", text_columns=1)


def share_of_objects_alone(record: Record, name: str, loss: str) -> str:
    """Return which share of GAP's MAP@R on the objects alone is reached on collages with the frozen backbone."""
    alone, cells = cells_of(record, "distilled"), cells_of(record, "frozen")
    known = (name, loss) in cells and ("GAP", loss) in alone
    return f"{100 * cells[name, loss]['map@r'] / alone['GAP', loss]['map@r']:.0f}" if known else ""


def by_sub_class(record: Record, name: str, loss: str) -> float | None:
    """Return MAP@R where only images of the same CIFAR-100 class count as right."""
    return cells_of(record, "frozen").get((name, loss), {}).get("by_sub_class")


def distances(record: Record, table: str) -> dict[tuple[str, str], float]:
    """Return how far every row is from the paper's figure, in points, by (row, loss)."""
    return {
        (name, loss): found["map@r"] - paper
        for (name, loss), found in cells_of(record, table).items()
        if (paper := paper_of(name, loss)) is not None
    }


def distance_table(record: Record) -> str:
    """Write the mean distance from the paper's figures in points, and the rows that are furthest from them."""
    rows = []
    for loss, shown in LOSSES.items():
        off = {name: each for (name, own), each in distances(record, "frozen").items() if own == loss}
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
    shared = {*distances(record, "frozen")} & {*distances(record, "fine_tuned")}
    off = [abs(each) for key, each in distances(record, table).items() if key in shared]
    return f"{fmean(off):.1f}" if off else "?"


# Collages of each split in the picture of weights.
SHOWN = 4
TITLES = {"train": "training classes", "test": "test classes"}


@torch.no_grad()
def write_shown_weights(worker: CollageWorker, training: Training, path: Path) -> None:
    """Train, and keep what the picture of weights shows: the first collage of some classes, its object, the weights."""
    from safetensors.torch import save as safetensors_bytes

    with torch.enable_grad():
        model, maps, _ = worker.train(training)
    content = {}
    for split in TITLES:
        images, stored = maps[split], worker.collages.sets[split]  # type: ignore[index]
        places = shown_places(images.labels, SHOWN)
        embedded = model.eval().embed(images.evaluation_images(places))
        tiles, objects = stored.evaluation_images(places).split([4, 1], dim=1)
        content[f"{split}.pictures"] = stitched(worker.collages.tiles, tiles).cpu().contiguous()
        content[f"{split}.weights"] = embedded.weights.view(-1, *embedded.grid).cpu().contiguous()
        content[f"{split}.objects"] = objects.flatten().cpu().contiguous()
    write_atomic(path, safetensors_bytes(content))


def draw_weights(kept: Path, path: Path) -> None:
    """Draw collages with the object framed, and the weights below, each map from 0 to its largest weight."""
    from matplotlib.patches import Rectangle
    from safetensors.torch import load_file

    content = load_file(kept)
    columns = [(split, number) for split in TITLES for number in range(len(content[f"{split}.objects"]))]
    figure, grid = subplots(2, len(columns), 1.3 * len(columns), 2.7)
    for (above, below), (split, number) in zip(grid.T, columns, strict=True):
        pictures, weights, objects = (content[f"{split}.{name}"] for name in ("pictures", "weights", "objects"))
        above.imshow(pictures[number].permute(1, 2, 0).numpy())
        down, across = divmod(int(objects[number]), 2)
        frame = Rectangle((32 * across - 0.5, 32 * down - 0.5), 32, 32, fill=False, edgecolor="yellow", linewidth=2)
        above.add_patch(frame)
        below.imshow(weights[number].numpy(), cmap="magma", vmin=0)
        if number == 0:
            above.set_title(TITLES[split], fontsize=9, loc="left")
        for axes in (above, below):
            axes.set(xticks=[], yticks=[])
    save(figure, path)


def draw_bars(record: Record, path: Path) -> None:
    """Draw the pooling table: a bar a layer, the best on top, layers with GSP in orange, diamonds for the paper."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    cells = cells_of(record, "frozen")
    figure, grid = subplots(1, len(LOSSES), 10, 5.4, sharex=True)
    for axes, (loss, shown) in zip(grid[0], LOSSES.items(), strict=True):
        names = sorted((name for name in ROWS if (name, loss) in cells), key=lambda name: -cells[name, loss]["map@r"])
        means, stds = ([cells[name, loss][part] for name in names] for part in ("map@r", "std"))
        colors = ["C1" if "GSP" in name else "C0" for name in names]
        bars(axes, names, means, stds, colors, [paper_of(name, loss) for name in names])
        axes.set(title=f"{shown}, frozen backbone", xlabel="MAP@R, %")
    seeds = f"mean ± std, {len(record['seeds'])} seeds"
    legend_below(
        figure,
        [
            Patch(color="C1", label=f"with GSP; {seeds}"),
            Patch(color="C0", label=f"other layers; {seeds}"),
            Line2D([], [], marker="D", markersize=4, color="black", linestyle="", label="paper"),
        ],
    )
    save(figure, path)


def headlines(value: Any) -> list[Headline]:
    """Return MAP@R of GAP and of GSP with the regularisation, at the paper's settings."""
    cells = cells_of({"value": value}, "frozen")
    return [
        Headline(
            f"MAP@R, {shown}, {name}, frozen backbone",
            f"{paper_of(name, loss):.2f}",
            plus_minus(cells[name, loss]["map@r"], cells[name, loss]["std"]) if (name, loss) in cells else "not run",
        )
        for loss, shown in LOSSES.items()
        for name in ("GAP", "GSP+ZSR")
    ]


EXPERIMENT = Experiment(
    name="collage",
    claim="an object among three distractors: GSP finds it where average pooling mixes all four",
    shows="Figure 3 (b) and the first two columns of the pooling table (Supp.)",
    cost="at most 392 trainings, half an hour on one H200 with --processes 14 --backend triton; --heads true: 120 "
    "trainings of other heads, 15 minutes",
    needs=("cifar100",),
    files=("collage", HEADS_FILE),
    run=run,
    tables={
        "pooling": partial(layer_table, "frozen", [*ROWS], (MEAN, PAPER, LESS_ROW)),
        "gain": gain_table,
        "weights": partial(layer_table, "frozen", [*ROWS], (ON_OBJECT, ENTROPY)),
        "distance": distance_table,
        "distance_frozen": partial(mean_distance, "frozen"),
        "distance_fine_tuned": partial(mean_distance, "fine_tuned"),
        "sub_classes": partial(loss_table, "{}", by_sub_class),
        "search_c2": partial(search_table, "c2"),
        "search_pnca": partial(search_table, "pnca"),
        "best": best_table,
        "tuned": partial(
            layer_table,
            "tuned",
            [tuned_name(name, flavour) for flavour in FLAVOURS for name in TUNED],
            (MEAN, PAPER, LESS_ROW, ON_OBJECT, ENTROPY),
        ),
        "objects_alone": partial(layer_table, "distilled", DISTILLED, (MEAN, ON_OBJECT, ENTROPY)),
        "share_of_objects_alone": partial(loss_table, "{}, %", share_of_objects_alone),
        "fine_tuned": partial(layer_table, "fine_tuned", FINE_TUNED, (MEAN, PAPER, ON_OBJECT, ENTROPY)),
        "heads": FromFile(HEADS_FILE, partial(layer_table, "heads", HEAD_ROWS, (MEAN, LESS_GAP, ON_OBJECT))),
    },
    plots={"collage_table": draw_bars},
    settings=CollageSettings,
    missing=missing,
    headlines=headlines,
    parallel=True,
)
