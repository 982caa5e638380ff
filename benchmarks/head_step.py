"""Time training steps of a GAP head, a GSP head and the published algorithm: what a user of one GPU or CPU waits for.

    OMP_NUM_THREADS=2 python benchmarks/head_step.py --out results/head_step_cpu.json --threads 1 2    # four minutes
    python benchmarks/head_step.py --device cuda --out results/head_step_gpu.json                      # a few seconds

A step is forward, ProxyNCA++ loss, backward and Adam, on the features of a batch; all heads embed them, take turns in
one process, and start after a warm-up. GSP compares embedded tokens with prototypes, so the head to compare it with is
GAP with the embedding before the pooling ("gap"). By itself GAP embeds the average, which costs one product for each
image instead of one for each token ("gap, embedding after"); "gsp, embedding after" compares the features themselves.
"Frozen" features need no gradient; those of a backbone in training do. "Published" is Prop. 4.2 as printed, 100 steps,
with the gradient of Prop. 4.3.

Beside the wall-clock time stands the CPU time of the process, by which one thread is compared: it does not count what
other programs take and changes little on a busy machine. Several threads need a quiet one: each waits for the others.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import normalize

from gspool import losses, pooling
from gspool.bench.timing import in_turns, keep_freed_pages, load_per_core
from gspool.functional import Pooled, clip_norm
from gspool.functional.published import closed_form_transport
from gspool.pooling.embedding import EmbedThenPool
from gspool.pooling.layer import PoolingLayer, as_tokens
from gspool.provenance import write_result

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES = 100
MU, EPSILON = 0.3, 5.0


class PublishedGSP(PoolingLayer):
    """GSP by the published algorithm."""

    def __init__(self, dim: int, prototypes: int) -> None:
        super().__init__(dim)
        self.prototypes = nn.Parameter(torch.randn(prototypes, dim) / dim**0.5)

    def pool(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> Pooled:
        """Pool by the fixed point and its closed-form gradient."""
        tokens = as_tokens(x, self.dim)
        # Distances by matrix products, with automatic differentiation.
        f, w = clip_norm(tokens), clip_norm(self.prototypes)
        squared = f.square().sum(-1)[:, None, :] + w.square().sum(-1)[:, None] - 2 * w @ f.transpose(1, 2)
        residual, plan = closed_form_transport(squared.clamp_min(1e-12).sqrt(), MU, EPSILON)
        weights = (1 / tokens.shape[1] - residual) / MU
        return Pooled(torch.bmm(weights[:, None], tokens)[:, 0], attributes=plan.sum(-1) / MU)


def heads(dim: int, out_dim: int, prototypes: int) -> dict[str, PoolingLayer]:
    """Return the heads to compare; GSP with the mu and epsilon of the published one."""
    return {
        "gap": pooling.create_embedding("gap", dim, out_dim, embedding="before"),
        "gap, embedding after": pooling.create_embedding("gap", dim, out_dim),
        "gsp": pooling.create_embedding("gsp", dim, out_dim, prototypes=prototypes),
        "gsp, embedding after": pooling.create_embedding("gsp", dim, out_dim, embedding="after", prototypes=prototypes),
        "published": EmbedThenPool(dim, PublishedGSP(out_dim, prototypes)),
    }


def training_step(head: PoolingLayer, features: torch.Tensor) -> Callable[[], None]:
    """Return one step of Adam with ProxyNCA++."""
    loss = losses.create("pnca", CLASSES, head.out_dim).to(features.device)
    head = head.train().to(features.device)
    optimizer = torch.optim.Adam([*head.parameters(), *loss.parameters()], lr=1e-4)
    labels = torch.arange(features.shape[0], device=features.device) % CLASSES

    def run() -> None:
        optimizer.zero_grad()
        features.grad = None
        loss(normalize(head(features), dim=-1), labels).backward()
        optimizer.step()

    return run


def counted(run: Callable[[], None], cpu_times: list[float]) -> Callable[[], None]:
    """Note the CPU milliseconds of every call, warm-up included."""

    def noted() -> None:
        begun = time.process_time()
        run()
        cpu_times.append(1e3 * (time.process_time() - begun))

    return noted


def measure(chosen: argparse.Namespace, layout: str, frozen: bool) -> dict[str, Any]:
    """Time the heads in turns on features of one layout."""
    torch.manual_seed(0)
    tokens = torch.randn(chosen.images, chosen.tokens, chosen.dim, device=chosen.device).relu_()
    features = tokens if layout == "tokens" else tokens.transpose(1, 2).unsqueeze(3).contiguous()
    features.requires_grad_(not frozen)
    steps = {
        name: training_step(head, features)
        for name, head in heads(chosen.dim, chosen.out_dim, chosen.prototypes).items()
    }
    cpu_times: dict[str, list[float]] = {name: [] for name in steps}
    runs = {name: counted(step, cpu_times[name]) for name, step in steps.items()}
    wall_times = in_turns(runs, torch.device(chosen.device), repeats=chosen.repeats)
    row: dict[str, Any] = {
        "features": f"{layout}, {'frozen' if frozen else 'learned'}",
        "threads": torch.get_num_threads(),
        "load_per_core": load_per_core(),
    }
    for clock, times in (("milliseconds", wall_times), ("cpu_milliseconds", cpu_times)):
        row[clock] = {name: round(statistics.median(each[-chosen.repeats :]), 3) for name, each in times.items()}
    clock = "milliseconds" if torch.get_num_threads() > 1 or chosen.device != "cpu" else "cpu_milliseconds"
    row["gsp_over_gap"] = round(row[clock]["gsp"] / row[clock]["gap"], 2)
    row["published_over_gsp"] = round(row[clock]["published"] / row[clock]["gsp"], 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dim", type=int, default=2048, help="channels of the features")
    parser.add_argument("--out-dim", type=int, default=128, help="length of the embedding")
    parser.add_argument("--prototypes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()])
    chosen = parser.parse_args()
    keep_freed_pages()
    rows = []
    for threads, layout, frozen in itertools.product(chosen.threads, ("tokens", "map"), (True, False)):
        torch.set_num_threads(threads)
        rows.append(measure(chosen, layout, frozen))
        print(rows[-1], flush=True)
    sizes = {name: getattr(chosen, name) for name in ("images", "tokens", "dim", "out_dim", "prototypes")}
    command = shlex.join(["python", "benchmarks/head_step.py", *sys.argv[1:]])
    write_result(chosen.out, {**sizes, "rows": rows}, command=command, seeds=[0], device=chosen.device)


if __name__ == "__main__":
    main()
