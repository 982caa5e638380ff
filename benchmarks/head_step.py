"""Time training steps of a GAP head, a GSP head and the published algorithm: what a user of one GPU or CPU waits for.

    OMP_NUM_THREADS=2 python benchmarks/head_step.py --out results/head_step_cpu.json         # about two minutes
    python benchmarks/head_step.py --device cuda --out results/head_step_gpu.json             # a few seconds

A step is forward, ProxyNCA++ loss, backward and Adam, on the features of a batch; all heads embed them, take turns in
one process, and start after a warm-up. GSP compares embedded tokens with prototypes, so the head to compare it with is
GAP with the embedding before the pooling ("gap"). By itself GAP embeds the average, which costs one product for each
image instead of one for each token ("gap, embedding after"). "Frozen" features need no gradient; those of a backbone in
training do. "Published" is Prop. 4.2 as printed, 100 steps, with the gradient of Prop. 4.3.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import normalize

from cpu_pooling import from_transport, product_distance
from gspool import losses, pooling
from gspool.bench.timing import Budget, Spread, in_turns, keep_freed_pages, load_per_core
from gspool.functional import Pooled
from gspool.functional.published import closed_form_transport
from gspool.pooling.embedding import EmbedThenPool
from gspool.pooling.layer import PoolingLayer, as_tokens
from gspool.provenance import write_result

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES = 100


class PublishedGSP(PoolingLayer):
    """GSP by the published algorithm."""

    def __init__(self, dim: int, prototypes: int) -> None:
        super().__init__(dim)
        self.prototypes = nn.Parameter(torch.randn(prototypes, dim) / dim**0.5)

    def pool(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> Pooled:
        """Pool by the fixed point and its closed-form gradient."""
        tokens = as_tokens(x, self.dim)
        pooled, attributes = from_transport(tokens, product_distance(self.prototypes, tokens), closed_form_transport)
        return Pooled(pooled, attributes=attributes)


def heads(dim: int, out_dim: int, prototypes: int) -> dict[str, PoolingLayer]:
    """Return the heads to compare; GSP with the mu and epsilon of the published one."""
    return {
        "gap": pooling.create_embedding("gap", dim, out_dim, embedding="before"),
        "gap, embedding after": pooling.create_embedding("gap", dim, out_dim),
        "gsp": pooling.create_embedding("gsp", dim, out_dim, prototypes=prototypes),
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


def measure(chosen: argparse.Namespace, layout: str, frozen: bool) -> dict[str, Any]:
    """Time the heads in turns on features of one layout."""
    torch.manual_seed(0)
    tokens = torch.randn(chosen.images, chosen.tokens, chosen.dim, device=chosen.device).relu_()
    features = tokens if layout == "tokens" else tokens.transpose(1, 2).unsqueeze(3).contiguous()
    features.requires_grad_(not frozen)
    runs = {
        name: training_step(head, features)
        for name, head in heads(chosen.dim, chosen.out_dim, chosen.prototypes).items()
    }
    times = {
        name: Spread.of(values)
        for name, values in in_turns(runs, torch.device(chosen.device), Budget(repeats=chosen.repeats)).items()
    }
    return {
        "features": f"{layout}, {'frozen' if frozen else 'learned'}",
        "milliseconds": {name: round(time.median, 3) for name, time in times.items()},
        "fastest_tenth": {name: round(time.low, 3) for name, time in times.items()},
        "gsp_over_gap": round(times["gsp"].median / times["gap"].median, 2),
        "published_over_gsp": round(times["published"].median / times["gsp"].median, 2),
        "load_per_core": load_per_core(),
    }


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
    chosen = parser.parse_args()
    keep_freed_pages()
    rows = []
    for layout in ("tokens", "map"):
        for frozen in (True, False):
            rows.append(measure(chosen, layout, frozen))
            print(rows[-1], flush=True)
    sizes = {name: getattr(chosen, name) for name in ("images", "tokens", "dim", "out_dim", "prototypes")}
    threads = torch.get_num_threads()
    command = shlex.join([f"OMP_NUM_THREADS={threads}", "python", "benchmarks/head_step.py", *sys.argv[1:]])
    write_result(chosen.out, {**sizes, "rows": rows}, command=command, seeds=[0], device=chosen.device)


if __name__ == "__main__":
    main()
