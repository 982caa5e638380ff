"""The figures of a protocol, from its finished runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gspool.evaluation.averages import MeanStd, RunResult, fair_average, mean_and_std
from gspool.evaluation.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from jaxtyping import Int
    from torch import Tensor

    from gspool.evaluation.protocols import Protocol


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
        """Everything as plain numbers, for JSON."""
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


def report_on(
    protocol: Protocol,
    results: dict[tuple[int, int], RunResult],
    labels: Int[Tensor, " Q"],
    gallery_labels: Int[Tensor, " G"] | None,
    ks: Sequence[int],
    device: torch.device | str | None,
    progress: bool,
) -> ProtocolReport:
    """Count finished runs as the protocol says.

    Raises:
        ValueError: if runs were not measured alike, or lack what the protocol chooses by.
    """
    metrics = {pair: result.metrics for pair, result in results.items()}
    if protocol.report == "combinations":
        count = protocol.repeats**protocol.folds
        with progress_bar(f"{protocol.name}: combinations", count, progress) as advance:
            average = fair_average(results, labels, gallery_labels, ks=ks, device=device, on_combination=advance)
        return ProtocolReport(protocol, metrics, average.separate, average.concatenated)
    separate = mean_and_std(list(metrics.values()))
    if protocol.report == "mean":
        return ProtocolReport(protocol, metrics, separate)
    if "p@1" not in separate:
        raise ValueError(f"the {protocol.name} protocol chooses its best run by 'p@1'; runs gave {sorted(separate)}")
    return ProtocolReport(protocol, metrics, separate, best=max(metrics.values(), key=lambda one: one["p@1"]))
