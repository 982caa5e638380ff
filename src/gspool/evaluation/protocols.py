"""The paper's protocols, run by run: what is finished stays finished, and only what is missing is run."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from gspool.evaluation.averages import MeanStd, RunResult, fair_average, mean_and_std
from gspool.evaluation.checked_input import as_embeddings, as_labels
from gspool.evaluation.finished_runs import FinishedRuns
from gspool.evaluation.folds import Fold, contiguous_folds
from gspool.files import write_atomic
from gspool.terminal.bar import work_bar

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from jaxtyping import Int
    from torch import Tensor


@dataclass(frozen=True)
class Protocol:
    """How models are trained and counted (Supp. 1.6.2, 1.6.4).

    ``splits`` parts of the training classes are made (1: none is held out), ``folds`` models are trained, each holding
    out another part, and each ``repeats`` times. ``report`` says what counts: every combination of one repeat a fold,
    the mean of the repeats, or the best of them.
    """

    name: str
    splits: int
    folds: int
    repeats: int
    report: Literal["combinations", "mean", "best"]

    def __post_init__(self) -> None:
        if self.splits < 1 or not 1 <= self.folds <= self.splits or self.repeats < 1:
            raise ValueError(
                "a protocol trains on at least one fold, on no more folds than splits, and at least once; got "
                f"splits={self.splits}, folds={self.folds}, repeats={self.repeats}"
            )
        if self.report not in ("combinations", "mean", "best"):
            raise ValueError(f"report must be 'combinations', 'mean' or 'best', got {self.report!r}")

    def fold(self, labels: Any, fold: int) -> Fold:
        """Return the training and validation classes of one model; without held-out classes, validation is empty.

        Example:
            >>> PROTOCOLS["tuning"].fold(range(10), 0).validation_classes.tolist()
            [0, 1]

        Raises:
            ValueError: if the protocol has no such fold, or the labels make too few classes.
        """
        if not 0 <= fold < self.folds:
            raise ValueError(f"the {self.name} protocol has folds 0 to {self.folds - 1}, got {fold}")
        if self.splits == 1:
            classes = as_labels(labels, "labels").unique()
            return Fold(train_classes=classes, validation_classes=classes[:0])
        return contiguous_folds(labels, self.splits)[fold]

    def runs(self) -> list[tuple[int, int]]:
        """List every (fold, repeat), repeats outermost, so that a first round over the folds comes early."""
        return [(fold, repeat) for repeat, fold in itertools.product(range(self.repeats), range(self.folds))]


PROTOCOLS: dict[str, Protocol] = {
    "fair": Protocol("fair", splits=4, folds=4, repeats=3, report="combinations"),
    "conventional": Protocol("conventional", splits=1, folds=1, repeats=3, report="best"),
    "tuning": Protocol("tuning", splits=5, folds=1, repeats=3, report="mean"),
}


@dataclass(frozen=True)
class ProtocolReport:
    """The figures of a protocol.

    ``separate`` averages models as they are (128D in the fair protocol), ``concatenated`` those joined over the folds
    (512D; fair only), ``best`` is the run with the highest P@1 (conventional only), ``runs`` holds each by itself.
    """

    protocol: Protocol
    runs: dict[tuple[int, int], Mapping[str, float]]
    separate: dict[str, MeanStd]
    concatenated: dict[str, MeanStd] | None = None
    best: Mapping[str, float] | None = None

    def as_dict(self) -> dict[str, object]:
        """Return everything as plain numbers, for JSON."""
        return {
            "protocol": self.protocol.name,
            "runs": {f"fold{fold}-repeat{repeat}": dict(metrics) for (fold, repeat), metrics in self.runs.items()},
            "separate": {name: value._asdict() for name, value in self.separate.items()},
            "concatenated": self.concatenated and {name: one._asdict() for name, one in self.concatenated.items()},
            "best": self.best and dict(self.best),
        }

    def __str__(self) -> str:
        rows = [f"{self.protocol.name}, {len(self.runs)} runs"]
        for title, table in (("separate", self.separate), ("concatenated", self.concatenated)):
            if table is not None:
                rows.append(f"{title:<13}" + "  ".join(f"{name} {value}" for name, value in table.items()))
        if self.best is not None:
            rows.append(f"{'best':<13}" + "  ".join(f"{name} {value:.4f}" for name, value in self.best.items()))
        return "\n".join(rows)


def run_protocol(
    protocol: str | Protocol,
    run: Callable[[int, int], RunResult],
    folder: str | os.PathLike[str],
    labels: Any,
    gallery_labels: Any = None,
    *,
    repeats: int | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    device: torch.device | str | None = None,
    progress: bool = False,
) -> ProtocolReport:
    """Run a protocol; runs that ``folder`` already holds are not repeated.

    After a crash, the same call continues with the first run that is missing. One process works on a folder at a time.

    Args:
        protocol: "fair", "conventional", "tuning", or one of your own.
        run: ``run(fold, repeat)`` trains and evaluates one model. Its seed must follow from its two numbers, if a
            resumed protocol is to reproduce the numbers of an uninterrupted one.
        folder: where finished runs and, at the end, ``report.json`` are kept.
        labels: classes of the test set (of its queries, where it has a gallery).
        gallery_labels: classes of the gallery, where the test set has one.
        repeats: how often each fold is trained, if not as often as the protocol says; more may be added later.
        ks: ranks of R@K for concatenated embeddings.
        device: where to search concatenated embeddings.
        progress: show bars (needs rich).

    Raises:
        ValueError: if the protocol is unknown, the folder belongs to something else, or a run returns what cannot be
            used.

    Example:
        >>> import tempfile, torch
        >>> from gspool.evaluation import retrieval_metrics
        >>> labels = torch.arange(12) % 4
        >>> def run(fold, repeat):
        ...     noise = torch.randn(12, 4, generator=torch.Generator().manual_seed(10 * fold + repeat))
        ...     embeddings = torch.eye(4)[labels] + 0.1 * noise
        ...     return RunResult(embeddings, retrieval_metrics(embeddings, labels))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = run_protocol("fair", run, folder, labels)
        >>> len(report.runs), report.concatenated["map@r"].mean
        (12, 1.0)
    """
    if isinstance(protocol, str):
        if protocol not in PROTOCOLS:
            raise ValueError(f"unknown protocol {protocol!r}; there are {', '.join(PROTOCOLS)}")
        protocol = PROTOCOLS[protocol]
    if repeats is not None:
        protocol = replace(protocol, repeats=repeats)
    labels = as_labels(labels, "labels")
    gallery_labels = None if gallery_labels is None else as_labels(gallery_labels, "gallery_labels")
    kept = FinishedRuns(
        folder,
        {
            "protocol": protocol.name,
            "splits": protocol.splits,
            "folds": protocol.folds,
            "test_set": _fingerprint(labels, gallery_labels),
        },
    )
    results = {}
    with work_bar(f"{protocol.name}: runs", 0, len(protocol.runs()), progress, "runs") as bar:
        for fold, repeat in protocol.runs():
            result = kept.load(fold, repeat)
            if result is None:
                result = run(fold, repeat)
                _check(result, f"run(fold={fold}, repeat={repeat})", labels, gallery_labels)
                result = kept.save(fold, repeat, result)
            results[fold, repeat] = result
            bar.advance()

    metrics = {pair: result.metrics for pair, result in results.items()}
    if protocol.report == "combinations":
        count = protocol.repeats**protocol.folds
        with work_bar(f"{protocol.name}: combinations", 0, count, progress, "combinations") as bar:
            average = fair_average(results, labels, gallery_labels, ks=ks, device=device, on_combination=bar.advance)
        report = ProtocolReport(protocol, metrics, average.separate, average.concatenated)
    else:
        best = _best(protocol, metrics) if protocol.report == "best" else None
        report = ProtocolReport(protocol, metrics, mean_and_std([*metrics.values()]), best=best)
    write_atomic(kept.folder / "report.json", json.dumps(report.as_dict(), indent=2).encode())
    return report


def _best(protocol: Protocol, metrics: Mapping[tuple[int, int], Mapping[str, float]]) -> Mapping[str, float]:
    for names in metrics.values():
        if "p@1" not in names:
            raise ValueError(f"the {protocol.name} protocol chooses its best run by 'p@1'; runs gave {sorted(names)}")
    return max(metrics.values(), key=lambda one: one["p@1"])


def _fingerprint(labels: Int[Tensor, " Q"], gallery_labels: Int[Tensor, " G"] | None) -> str:
    """Compute a hash of the test set, so that runs on one are never averaged with runs on another."""
    sides = [labels.tolist(), None if gallery_labels is None else gallery_labels.tolist()]
    return hashlib.sha256(json.dumps(sides).encode()).hexdigest()


def _check(result: RunResult, name: str, labels: Int[Tensor, " Q"], gallery_labels: Int[Tensor, " G"] | None) -> None:
    if not isinstance(result, RunResult):
        raise ValueError(f"{name} must return a RunResult(embeddings, metrics), got {type(result).__name__}")
    if (result.gallery is None) != (gallery_labels is None):
        raise ValueError(f"{name} must return gallery embeddings exactly if the test set has gallery_labels")
    for side, vectors, classes in (
        ("embeddings", result.embeddings, labels),
        ("gallery", result.gallery, gallery_labels),
    ):
        if vectors is not None and classes is not None:
            rows = len(as_embeddings(vectors, f"{side} of {name}"))
            if rows != len(classes):
                raise ValueError(f"{side} of {name} must have a row for each of {len(classes)} labels, got {rows}")
    if not result.metrics or not all(math.isfinite(value) for value in result.metrics.values()):
        raise ValueError(f"{name} must return finite metrics, got {dict(result.metrics)}")
