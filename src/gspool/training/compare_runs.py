"""The runs of a comparison: one training a variant, fold and seed, their choice by validation, and their summary."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import save as save_tensors

from gspool.evaluation.statistics import deviation, matched_difference
from gspool.executor import Executor
from gspool.executor.grid import Worker
from gspool.executor.run_store import RunStore
from gspool.features import TokenLayout
from gspool.files import write_atomic
from gspool.training.compare_data import TaskName, Tokens, token_sets
from gspool.training.config import TrainConfig, TrainedHeadConfig
from gspool.training.frozen import fits_memory
from gspool.training.gpu_data import TensorSet
from gspool.training.head_settings import HEAD_OPTIONS
from gspool.training.heads import FROZEN, TOP1, build_head, head_config, train_head, train_probe
from gspool.training.metric_learning import build_loss

if TYPE_CHECKING:
    from gspool.training.compare import CompareConfig

METRICS = {"embed": ("p@1", "p@r", "map@r"), "classify": (TOP1,)}


class Variant(NamedTuple):
    """A layer with settings: one try. ``learn`` is False for the frozen feature itself."""

    layer: str
    options: tuple[tuple[str, Any], ...] = ()
    head: tuple[tuple[str, Any], ...] = ()
    learn: bool = True

    @property
    def name(self) -> str:
        """Name the try as its settings write it.

        Example:
            >>> Variant("gsp", (("mu", 0.1),), (("rate", 10),)).name
            'gsp mu=0.1 rate=10'
        """
        if not self.learn:
            return f"{FROZEN} {self.layer}"
        return " ".join([self.layer, *(f"{name}={value}" for name, value in (*self.options, *self.head))])


def asked_of(row: str, variant: Variant, fold: int, seed: int) -> dict[str, Any]:
    """Return one training as the run store looks it up: ``row`` is the line of the table it belongs to."""
    return {
        "row": row,
        "layer": variant.layer,
        "options": dict(variant.options),
        "head": dict(variant.head),
        "learn": variant.learn,
        "fold": fold,
        "seed": seed,
    }


def configured(config: CompareConfig, chosen: Mapping[str, Any], seed: int) -> TrainConfig:
    """Return the configuration of one training, with the head settings of its try applied."""
    own: dict[str, dict[str, Any]] = {
        "head": asdict(config.head),
        "optimiser": {},
        "loss": {},
        "zsr_options": dict(config.loss.zsr_options),
    }
    for name, value in chosen.items():
        section, setting = HEAD_OPTIONS[name]
        own[section][setting] = float(value) if section in ("optimiser", "loss") else value
    return TrainConfig(
        data=config.data,
        head=TrainedHeadConfig(**own["head"]),
        loss=replace(config.loss, **own["loss"], zsr_options=own["zsr_options"]),
        optimiser=replace(config.optimiser, **own["optimiser"]),
        schedule=config.schedule,
        trainer=replace(config.trainer, seed=seed),
    )


def check_heads(config: CompareConfig, rows: Mapping[str, Sequence[Variant]], channels: int, class_token: bool) -> None:
    """Build every head and its loss, and run a step's forward pass on a few blank tokens.

    Raises:
        ValueError: if a setting does not fit the layer, the embedding or the backbone.
    """
    layout = TokenLayout(1, int(class_token), class_token, 16, channels, (4, 4), "fp32")
    for variant in (each for variants in rows.values() for each in variants if each.learn):
        try:
            train = configured(config, dict(variant.head), seed=0)
            model = build_head(variant.layer, layout, config.dim, dict(variant.options), train.head, seed=0)
            model.train()(torch.rand(2, *layout.shape[1:]))
            if config.task == "embed":
                build_loss(train.loss, 2, model.out_dim, batch_size=2, seed=0, parts=model.head.parts)
        except Exception as error:
            raise ValueError(f"{variant.name}: {error}") from error


def make_worker(
    config: CompareConfig,
    tokens: Tokens,
    device: str,
    in_memory: bool = True,
    heads: Path | None = None,
    sets_of: Callable[[Tokens, int, int, TaskName], dict[str, TensorSet]] = token_sets,
) -> Worker:
    """Make a worker that trains one head after the other on tokens that it loads once.

    Results are plain JSON, metrics in percent; the state of every head goes into the folder ``heads``. ``sets_of`` cuts
    the tokens into the sets of a fold.
    """
    if in_memory:
        load_tokens(tokens, device)
    sets: dict[int, dict[str, TensorSet]] = {}

    def work(asked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        fold, seed = asked["fold"], asked["seed"]
        if fold not in sets:
            sets.clear()
            sets[fold] = sets_of(tokens, config.folds, fold, config.task)
        train = configured(config, asked["head"], seed)
        model = build_head(asked["layer"], tokens.learning.layout, config.dim, asked["options"], train.head, seed)
        if config.task == "classify":
            result = train_probe(model, head_config(train, model, "head"), sets[fold], learn=asked["learn"])
        else:
            result = train_head(model, head_config(train, model), sets[fold], learn=asked["learn"])
        if device.startswith("cuda"):
            torch.cuda.empty_cache()  # layers need very different amounts, and other processes share the memory
        if heads is not None:
            write_atomic(heads / f"{head_name(asked)}.safetensors", save_tensors(result.state))
        return {
            "validation": {name: 100 * result.validation[name] for name in METRICS[config.task]},
            "test": {name: 100 * result.test[name] for name in METRICS[config.task]},
            "entropy": result.entropy,
            "best_step": result.best_step,
            "steps": result.steps,
            "seconds": round(result.seconds, 2),
            "parameters": result.parameters,
        }

    return work


def head_name(asked: Mapping[str, Any]) -> str:
    """Return the file name of a trained head: a hash of what was asked for."""
    return hashlib.sha256(json.dumps(dict(asked), sort_keys=True).encode()).hexdigest()[:16]


def main_metric(metrics: Mapping[str, float]) -> float:
    """Return what heads are chosen and judged by: MAP@R, or top-1 of a classifier."""
    return metrics[TOP1] if TOP1 in metrics else metrics["map@r"]


def finished_variants(
    rows: Mapping[str, Sequence[Variant]], store: RunStore, folds: Sequence[int], seed: int
) -> dict[str, list[Variant]]:
    """Return the tries of every row that are finished on all folds of a seed; rows without any are left out."""
    finished = {
        row: [each for each in tries if all(store.get(asked_of(row, each, fold, seed)) for fold in folds)]
        for row, tries in rows.items()
    }
    return {row: tries for row, tries in finished.items() if tries}


def best_variants(
    rows: Mapping[str, Sequence[Variant]], store: RunStore, folds: Sequence[int], seed: int
) -> dict[str, Variant]:
    """Choose the try of every row by its mean on validation, of those that are finished."""

    def validation(row: str, variant: Variant) -> float:
        found = (store.get(asked_of(row, variant, fold, seed)) for fold in folds)
        return fmean(main_metric(each["validation"]) for each in found if each)

    return {
        row: max(tries, key=lambda each: validation(row, each))
        for row, tries in finished_variants(rows, store, folds, seed).items()
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one line a row, best validation first: means, and paired differences from ``gap`` and the first line."""
    rows: dict[str, dict[tuple[int, int], Mapping[str, Any]]] = {}
    for each in runs:
        rows.setdefault(each["asked"]["row"], {})[each["asked"]["fold"], each["asked"]["seed"]] = each["found"]
    lines = []
    for row, own in rows.items():
        test, entropies = [main_metric(found["test"]) for found in own.values()], [f["entropy"] for f in own.values()]
        nearest = [found["test"]["p@1"] for found in own.values() if "p@1" in found["test"]]
        lines.append(
            {
                "row": row,
                "validation": fmean(main_metric(found["validation"]) for found in own.values()),
                "test": fmean(test),
                "std": deviation(test),
                "p@1": fmean(nearest) if nearest else None,
                "runs": len(own),
                "best_step": fmean(found["best_step"] for found in own.values()),
                "entropy": None if None in entropies else fmean(entropies),
                "parameters": next(iter(own.values()))["parameters"],
                "seconds": fmean(found["seconds"] for found in own.values()),
            }
        )
    lines.sort(key=lambda line: -line["validation"])
    for line in lines:
        for name, other in (("against_gap", "gap"), ("against_best", lines[0]["row"])):
            line[name] = _paired(rows[line["row"]], rows.get(other)) if line["row"] != other else None
    return lines


def _paired(own: Mapping[tuple[int, int], Any], other: Mapping[tuple[int, int], Any] | None) -> dict[str, Any] | None:
    """Summarise differences on test; the frozen feature has one run a fold, which pairs with every seed."""
    pairs = sorted({*own, *(other or {})})
    ours, theirs = (
        {pair: main_metric(found["test"]) for pair in pairs if (found := _of_fold(runs, *pair)) is not None}
        for runs in (own, other or {})
    )
    return matched_difference(ours, theirs)


def _of_fold(runs: Mapping[tuple[int, int], Any], fold: int, seed: int) -> Any:
    alone = [found for (other, _), found in runs.items() if other == fold]
    return runs.get((fold, seed), alone[0] if len(alone) == 1 else None)


def hold_tokens(tokens: Tokens, device: str, executor: Executor) -> bool:
    """Decide where workers find the tokens, and return whether that is in memory (``in_memory`` of `make_worker`).

    Processes of this machine share one copy: in memory of the GPU, where this process loads it now and has to keep it,
    or as memory maps of the files, which the system holds in memory once. On a Ray cluster every worker has its own.
    """
    several = executor.ray is None and executor.workers > 1
    if several and device == "cpu":
        return False
    if device.startswith("cuda"):
        torch.cuda.empty_cache()  # what the backbone needed
    if not fits_memory(tokens, device, 1 if several else max(executor.workers, 1)):
        return False
    if several:
        load_tokens(tokens, device)
    return True


def load_tokens(tokens: Tokens, device: str) -> None:
    """Put the tokens into memory of the device, unless they are there or another process shares them."""
    for part, views in ((tokens.learning, None), (tokens.test, 1)):
        if not part.open_shared():
            part.load(device, views)
