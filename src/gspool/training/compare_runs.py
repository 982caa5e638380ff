"""The trainings of a comparison: tokens cut into folds, workers that train heads on them, and what came out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from safetensors.torch import save as save_tensors

from gspool import data
from gspool.data import ImageSet
from gspool.data.image_source import FileImages
from gspool.data.registry import option_names
from gspool.evaluation.folds import contiguous_folds
from gspool.evaluation.statistics import deviation, paired_difference
from gspool.executor.grid import Worker
from gspool.executor.run_store import RunStore
from gspool.features import TokenSet
from gspool.files import write_atomic
from gspool.training.compare_config import CompareConfig, Variant, configured
from gspool.training.config import DataConfig
from gspool.training.gpu_data import TensorSet
from gspool.training.heads import build_head, head_config, train_head


class Tokens(NamedTuple):
    """What every worker trains on: tokens of the learning classes and of the test classes."""

    learning: TokenSet
    test: TokenSet


def learning_set(config: DataConfig) -> ImageSet:
    """Return all pictures to learn from, of which folds hold out validation classes.

    Data that names a validation split of its own gives train and validation together.
    """
    options = {name: value for name, value in config.options.items() if name not in ("fold", "folds")}
    train = data.create(config.name, config.root, "train", **options)
    if "fold" in option_names(config.name):
        return train
    try:
        more = data.create(config.name, config.root, "validation", **options)
    except ValueError:
        return train
    names = [*train.class_names, *(name for name in more.class_names if name not in train.class_names)]
    if not isinstance(train.images, FileImages) or not isinstance(more.images, FileImages):
        return train
    number = {name: label for label, name in enumerate(names)}
    labels = [number[part.class_names[label]] for part in (train, more) for label in part.labels.tolist()]
    return ImageSet(FileImages([*train.images.paths, *more.images.paths]), labels, names, name=train.name)


def token_sets(tokens: Tokens, folds: int, fold: int) -> dict[str, TensorSet]:
    """Cut the learning classes into train and validation, every view of a training picture an entry of its own."""
    learning, test = tokens
    fold_classes = contiguous_folds(learning.labels, folds)[fold]
    rows = learning.entries()
    train = TensorSet.of(rows, learning.labels.repeat_interleave(learning.views), name="tokens")
    centre = TensorSet(rows, learning.labels, learning.views * torch.arange(len(learning)), split="validation")
    return {
        "train": train.of_classes(fold_classes.train_classes.tolist()),
        "validation": centre.of_classes(fold_classes.validation_classes.tolist()),
        "test": TensorSet(
            test.entries(),
            test.labels,
            test.views * torch.arange(len(test)),
            split="test",
            queries=_queries(test.images),
        ),
    }


def _queries(images: ImageSet) -> torch.Tensor | None:
    return None if images.roles is None else torch.tensor([role == "query" for role in images.roles])


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


def make_worker(
    config: CompareConfig, tokens: Tokens, device: str, in_memory: bool = True, heads: Path | None = None
) -> Worker:
    """Make a worker that trains one head after the other on tokens that it loads once.

    Results are plain JSON, metrics in percent; the state of every head goes into the folder ``heads``.
    """
    if in_memory:
        tokens.learning.load(device)
        tokens.test.load(device, views=1)
    sets: dict[int, dict[str, TensorSet]] = {}

    def work(asked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        fold, seed = asked["fold"], asked["seed"]
        if fold not in sets:
            sets.clear()
            sets[fold] = token_sets(tokens, config.folds, fold)
        train, head = configured(config, asked["head"], seed)
        model = build_head(asked["layer"], tokens.learning.layout, config.dim, asked["options"], head, seed)
        result = train_head(model, head_config(train, model), sets[fold], learn=asked["learn"])
        if heads is not None:
            write_atomic(heads / f"{head_name(asked)}.safetensors", save_tensors(result.state))
        names = ("p@1", "p@r", "map@r")
        return {
            "validation": {name: 100 * result.validation[name] for name in names},
            "test": {name: 100 * result.test[name] for name in names},
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


def best_variants(
    rows: Mapping[str, Sequence[Variant]], store: RunStore, folds: Sequence[int], seeds: Sequence[int]
) -> dict[str, Variant]:
    """Choose the try of every row by its mean validation MAP@R; one with missing runs is not chosen."""

    def validation(row: str, variant: Variant) -> float:
        found = [store.get(asked_of(row, variant, fold, seed)) for fold in folds for seed in seeds]
        values = [each["validation"]["map@r"] for each in found if each]
        return fmean(values) if len(values) == len(found) else float("-inf")

    return {row: max(variants, key=lambda each: validation(row, each)) for row, variants in rows.items()}


def summary(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one line a row, best validation first: means, and paired differences against ``gap`` and the first line.

    Args:
        runs: dictionaries with ``asked`` and ``found``.
    """
    rows: dict[str, dict[tuple[int, int], Mapping[str, Any]]] = {}
    for each in runs:
        rows.setdefault(each["asked"]["row"], {})[each["asked"]["fold"], each["asked"]["seed"]] = each["found"]
    lines = []
    for row, own in rows.items():
        test, entropies = [found["test"]["map@r"] for found in own.values()], [f["entropy"] for f in own.values()]
        lines.append(
            {
                "row": row,
                "validation": fmean(found["validation"]["map@r"] for found in own.values()),
                "test": fmean(test),
                "std": deviation(test),
                "p@1": fmean(found["test"]["p@1"] for found in own.values()),
                "runs": len(own),
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
    """Summarise test MAP@R differences; the frozen feature has one run a fold, which pairs with every seed."""
    folds: dict[int, list[float]] = {}
    for fold, seed in sorted({*own, *(other or {})}):
        ours, theirs = (_of_fold(runs, fold, seed) for runs in (own, other or {}))
        if ours is not None and theirs is not None:
            folds.setdefault(fold, []).append(ours["test"]["map@r"] - theirs["test"]["map@r"])
    return paired_difference(list(folds.values()))._asdict() if folds else None


def _of_fold(runs: Mapping[tuple[int, int], Any], fold: int, seed: int) -> Any:
    alone = [found for (other, _), found in runs.items() if other == fold]
    return runs.get((fold, seed), alone[0] if len(alone) == 1 else None)


def fits_memory(tokens: Tokens, device: str, processes: int) -> bool:
    """Whether every process can hold all tokens in the memory of the device, with half of it to spare for training."""
    needed = processes * (tokens.learning.memory_bytes + tokens.test.memory_bytes)
    if device.startswith("cuda"):
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return needed < free // 2
