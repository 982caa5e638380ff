"""Figure 7, left, and the supplement's "Computational Analysis": what iterations cost, alone and in a whole network.

Paper: with automatic differentiation the cost of back-propagation grows with the number k of iterations; with the
closed-form gradient it is constant, and 25 to 50 iterations add less than 6 % to inference (43.1 to 45.6 ms an image).
Ours: results/computation.json, the solver alone, and results/computation_network.json, what GSP adds to an inference of
one image and to a training step of CUB. Our solver has no k: it runs until convergence.

    gspool reproduce computation                                    # one CPU core, five minutes
    gspool reproduce computation --part network --device cuda       # rows of a GPU beside those of the CPU, one minute

On a CPU all times are those of the process on one core, so that other programs count little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from torch import nn

from gspool.experiments.experiment import Experiment, FromFile, Headline, Record, RunOptions
from gspool.experiments.plots import curve, legend_below, save, subplots
from gspool.experiments.retrieval_training import Variant, train_config
from gspool.experiments.tables import markdown_table
from gspool.functional import clip_norm, distance, partial_transport
from gspool.functional.published import closed_form_transport, fixed_point_transport
from gspool.models import Embedder
from gspool.models.embedder import embed_features
from gspool.pooling.layer import as_tokens
from gspool.provenance import is_quick, origin_here, read_result, write_result
from gspool.training.metric_learning import build_loss, build_model, build_optimiser

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.pooling.embedding import EmbedThenPool
    from gspool.pooling.gsp import GSP

MU, EPSILON = 0.3, 5.0
ITERATIONS = (1, 5, 10, 25, 50, 100)
REPEATS = 30
EXACT, CLOSED, UNROLLED = "exact solver", "closed form", "unrolled"
NETWORK = "computation_network"
NETWORKS = {"ResNet50": "keras/resnet50", "BN-Inception": "bninception"}
# Training classes of CUB, and repeats of a whole training step, which takes half a minute on a CPU.
CLASSES, TRAINING_REPEATS = 100, 2
# An image without GSP and with 25 to 50 iterations, in the paper.
PAPER_MS = (43.1, 45.6)
Rows = Sequence[Mapping[str, Any]]
Solver = Callable[[torch.Tensor], Any]


@dataclass(frozen=True)
class ComputationSettings:
    """Options of the measurement.

    Args:
        part: the solver alone, its share of a whole network, or both.
    """

    part: Literal["solver", "network", "both"] = "both"


class Size(NamedTuple):
    """A batch of feature maps: CUB's is 32 images of 8 x 8 features against 64 prototypes."""

    images: int = 32
    tokens: int = 64
    prototypes: int = 64
    dim: int = 128


def costs(size: Size, device: str, seed: int = 0) -> torch.Tensor:
    """Draw features, and prototypes near some of them; return the distances."""
    generator = torch.Generator().manual_seed(seed)
    tokens = clip_norm(torch.randn(size.images, size.tokens, size.dim, generator=generator))
    prototypes = clip_norm(
        tokens.flatten(0, 1)[: size.prototypes] + 0.05 * torch.randn(size.prototypes, size.dim, generator=generator)
    )
    return distance(prototypes, tokens).to(device)


def in_turns(steps: Mapping[str, Callable[[], Any]], device: str, repeats: int) -> dict[str, list[float]]:
    """Time steps in turns after a warm-up, in seconds; on a CPU in process time, which other programs hardly affect."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    clock = time.process_time if device == "cpu" else time.perf_counter
    for number in range(repeats + 1):
        for name, step in steps.items():
            if device != "cpu":
                torch.cuda.synchronize(device)
            start = clock()
            step()
            if device != "cpu":
                torch.cuda.synchronize(device)
            found[name] += [clock() - start] if number else []
    return found


def measure(size: Size, device: str, iterations: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """Time forward, and forward with backward, of every solver, and compute its error against float64."""
    cost = costs(size, device)
    exact = partial_transport(cost.double(), MU, EPSILON).plan
    solvers: list[tuple[str, int | None, Solver]] = [(EXACT, None, partial(partial_transport, mu=MU, epsilon=EPSILON))]
    for count in iterations:
        for name, solve in ((CLOSED, closed_form_transport), (UNROLLED, fixed_point_transport)):
            solvers.append((name, count, partial(solve, mu=MU, epsilon=EPSILON, steps=count)))
    rows = []
    for name, steps, solver in solvers:
        leaf, weight = cost.clone().requires_grad_(), torch.randn_like(cost)
        timed: dict[str, Callable[[], Any]] = {
            "forward": partial(forward, solver, cost),
            "step": partial(forward_and_backward, solver, leaf, weight),
        }
        row: dict[str, Any] = {"way": name, "k": steps}
        for what, times in in_turns(timed, device, repeats).items():
            row |= {f"{what}_ms": 1e3 * statistics.median(times), f"{what}_std_ms": 1e3 * statistics.stdev(times)}
        error = (forward(solver, cost) - exact).abs().max() / exact.max()
        rows.append({**row, "relative_error": float(error)})
    return rows


@torch.no_grad()
def forward(solver: Solver, cost: torch.Tensor) -> torch.Tensor:
    """Solve without a gradient, and return the plan."""
    plan: torch.Tensor = solver(cost).plan
    return plan


def forward_and_backward(solver: Solver, leaf: torch.Tensor, weight: torch.Tensor) -> None:
    """Solve, and compute the gradient of a weighted sum of the plan."""
    leaf.grad = None
    (solver(leaf).plan * weight).sum().backward()


class Network:
    """A network of the benchmark with average pooling or GSP, and a batch of random images.

    GSP trains with the zero-shot regularisation, as in the paper, so that its loss counts as well.
    """

    def __init__(self, backbone: str, pooling: str, device: str, classes: int, images_per_class: int) -> None:
        # Without its warm start GSP selects from the first step on.
        options = {"warm_start": 0} if pooling == "gsp" else {}
        config = train_config(Variant("c2", pooling, options=options), "cub", "fair", backbone)
        self.model: Embedder = build_model(config).to(device)
        self.loss = build_loss(config.loss, CLASSES, self.model.out_dim, config.data.batch_size, 0).to(device)
        self.optimiser = build_optimiser(
            config.optimiser, nn.ModuleDict({"model": self.model, "loss": cast("nn.Module", self.loss)})
        )
        self.labels = torch.arange(classes, device=device).repeat_interleave(images_per_class)
        size = (len(self.labels), 3, *self.model.pixels.crop)
        self.images = torch.rand(size, generator=torch.Generator().manual_seed(0)).to(device)
        kind = torch.device(device).type
        self.autocast = partial(torch.autocast, kind, torch.bfloat16, enabled=kind != "cpu")
        with self.autocast(), torch.no_grad():
            self.features = self.model.eval().feature_map(self.images)

    def infer(self) -> None:
        """Embed the images."""
        with self.autocast(), torch.inference_mode():
            self.model(self.images)

    def infer_after_backbone(self, iterations: int = 0) -> None:
        """Embed features; by so many iterations of the paper where they are given, instead of our solver."""
        with self.autocast(), torch.inference_mode():
            if iterations:
                iterated_pool(cast("EmbedThenPool", self.model.head), self.features, iterations)
            else:
                embed_features(self.model.head, self.features)

    def train(self) -> None:
        """Make a training step."""
        self.model.train()
        self.optimiser.zero_grad()
        with self.autocast():
            features = self.model.feature_map(self.images)
        self._backpropagate(features)
        self.optimiser.step()

    def train_after_backbone(self) -> None:
        """Make the part of a training step between features and their gradient."""
        self._backpropagate(self.features.detach().requires_grad_())

    def _backpropagate(self, features: Float[Tensor, "B C h w"]) -> None:
        with self.autocast():
            embedded = embed_features(self.model.head, features)
        self.loss(embedded.embedding, self.labels, embedded.attributes).total.backward()


def iterated_pool(head: EmbedThenPool, features: Float[Tensor, "B C h w"], iterations: int) -> Float[Tensor, "B D"]:
    """Embed features and pool them as the paper does, by a number of fixed-point iterations."""
    layer = cast("GSP", head.layer)
    tokens = as_tokens(head.embed(features), layer.dim).float()
    with torch.autocast(features.device.type, enabled=False):
        plan = fixed_point_transport(distance(layer.prototypes, tokens), MU, EPSILON, iterations).plan
        return nn.functional.normalize(torch.einsum("bn,bnd->bd", plan.sum(1) / MU, tokens), dim=-1)


def measure_network(networks: Mapping[str, str], options: RunOptions) -> list[dict[str, Any]]:
    """Time whole networks with both layers, and what follows the backbone, for an image and for a training step.

    The minimum over repeats is kept: everything else that the machine does only adds to it.
    """
    device, repeats, rows = options.device, 2 if options.quick else REPEATS, []
    origin = origin_here(device)
    for name, backbone in networks.items():
        one, batch = (
            {pooling: Network(backbone, pooling, device, *size) for pooling in ("gap", "gsp")}
            for size in ((1, 1), (2, 2) if options.quick else (8, 4))
        )
        iterated = {f"k {count}": partial(one["gsp"].infer_after_backbone, count) for count in ITERATIONS}
        few = TRAINING_REPEATS if device == "cpu" else repeats
        for step, models, whole, whole_repeats, alone, more in (
            ("inference", one, Network.infer, repeats, Network.infer_after_backbone, iterated),
            ("training", batch, Network.train, few, Network.train_after_backbone, {}),
        ):
            steps, heads = ({layer: partial(each, own) for layer, own in models.items()} for each in (whole, alone))
            times = in_turns(steps, device, whole_repeats), in_turns({**heads, **more}, device, repeats)
            ms, after_ms = ({layer: 1e3 * min(own) for layer, own in each.items()} for each in times)
            row = {"network": name, "step": step, "images": len(models["gap"].labels), "ms": ms, "after_ms": after_ms}
            rows.append({"device": origin["device"], **row, "origin": origin})
    return rows


def run(options: RunOptions) -> None:
    """Measure and write the results."""
    part, command = (options.settings or ComputationSettings()).part, EXPERIMENT.command(options)
    threads = torch.get_num_threads()
    # One thread: process time adds up the time of all threads.
    torch.set_num_threads(1)
    try:
        if part != "network":
            size = Size(4, 16, 8, 16) if options.quick else Size()
            repeats = 3 if options.quick else REPEATS
            rows = measure(size, options.device, (1, 5) if options.quick else ITERATIONS, repeats)
            value = {"size": size._asdict(), "mu": MU, "epsilon": EPSILON, "repeats": repeats, "rows": rows}
            path = options.results / "computation.json"
            write_result(path, value, command=command, seeds=[0], device=options.device)
        if part != "solver":
            path = options.results / f"{NETWORK}.json"
            rows = measure_network({"small CNN": "small_cnn"} if options.quick else NETWORKS, options)
            before = read_result(path) if path.is_file() else None
            if before is not None and is_quick(before) == options.quick:
                # Rows of other devices stay.
                rows = [row for row in before["value"] if row["device"] != rows[0]["device"]] + rows
            write_result(path, rows, command=command, seeds=[0], origins=[row["origin"] for row in rows])
    finally:
        torch.set_num_threads(threads)


def added(row: Mapping[str, Any], layer: str = "gsp") -> float:
    """Return what GSP adds to a step of the whole network, in percent, from the time after the backbone.

    The difference of two whole networks is less than their times vary.

    Example:
        >>> added({"ms": {"gap": 50.0, "gsp": 51.0}, "after_ms": {"gap": 0.5, "gsp": 1.5}})
        2.0
    """
    after: Mapping[str, float] = row["after_ms"]
    return 100 * (after[layer] - after["gap"]) / float(row["ms"]["gap"])


def network_table(record: Record) -> str:
    """Write the times of whole networks, of their heads (all that follows the backbone), and what GSP adds."""
    return markdown_table(
        [
            {
                "device": row["device"],
                "network": row["network"],
                "step": f"{row['step']}, {row['images']} image{'s' * (row['images'] > 1)}",
                **{f"{name.upper()}, ms": f"{row['ms'][name]:.2f}" for name in ("gap", "gsp")},
                **{f"{name.upper()}, head, ms": row["after_ms"][name] for name in ("gap", "gsp")},
                "GSP adds": f"{added(row):+.2f} %",
                "k = 50 adds": f"{added(row, 'k 50'):+.2f} %" if "k 50" in row["after_ms"] else None,
            }
            for row in record["value"]
        ],
        ".2f",
        text_columns=3,
    )


def draw_network(record: Record, path: Path) -> None:
    """Draw the increase of an inference against the number of iterations, our solver as a dashed line."""
    figure, ((axes,),) = subplots(width=6, height=3.4)
    for number, row in enumerate(row for row in record["value"] if row["step"] == "inference"):
        color, name = f"C{number}", f"{row['network']}, {row['device']}"
        curve(axes, ITERATIONS, [added(row, f"k {count}") for count in ITERATIONS], color=color, label=name)
        axes.axhline(added(row), linestyle="--", color=color)
    axes.hlines(100 * (PAPER_MS[1] / PAPER_MS[0] - 1), 25, 50, color="grey", linewidth=3, label="paper")
    # A GPU and a CPU differ by more than a linear scale can show.
    axes.set(xlabel="iterations k", ylabel="GSP adds to inference, %", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    legend_below(figure, columns=2)
    save(figure, path, dpi=150)


def backward(row: Mapping[str, Any]) -> float:
    """Return the time of the backward pass alone: the difference of two medians, which noise may make negative."""
    return max(float(row["step_ms"] - row["forward_ms"]), 0.0)


def backward_growth(rows: Rows, way: str) -> str:
    """Write how the backward pass grows from the smallest k to the largest.

    Example:
        >>> rows = [{"way": "unrolled", "k": k, "forward_ms": 1.0, "step_ms": ms} for k, ms in ((10, 5.0), (1, 1.5))]
        >>> backward_growth(rows, "unrolled")
        '0.50 to 4.00 ms'
    """
    own = sorted((row for row in rows if row["way"] == way), key=lambda row: int(row["k"]))
    return f"{backward(own[0]):.2f} to {backward(own[-1]):.2f} ms"


def times(record: Record) -> str:
    """Write the table of all solvers."""
    return markdown_table(
        [
            {
                "solver": row["way"],
                "k": "" if row["k"] is None else row["k"],
                "relative error": f"{row['relative_error']:.0e}",
                "forward, ms": f"{row['forward_ms']:.2f} ± {row['forward_std_ms']:.2f}",
                "backward alone, ms": backward(row),
                "forward and backward, ms": f"{row['step_ms']:.2f} ± {row['step_std_ms']:.2f}",
            }
            for row in record["value"]["rows"]
        ],
        ".2f",
        text_columns=1,
    )


def draw(record: Record, path: Path) -> None:
    """Draw the time of forward and backward against k, the exact solver as a line."""
    rows = record["value"]["rows"]
    figure, ((axes,),) = subplots(width=5, height=3.2)
    for name in (UNROLLED, CLOSED):
        own = [(row["k"], row["step_ms"], row["step_std_ms"]) for row in rows if row["way"] == name]
        curve(axes, *zip(*own, strict=True), label=name)
    (exact,) = (row["step_ms"] for row in rows if row["way"] == EXACT)
    axes.axhline(exact, linestyle="--", color="grey", label=EXACT)
    axes.set(xlabel="iterations k", ylabel="forward and backward, ms", ylim=(0, None))
    axes.legend()
    save(figure, path, dpi=150)


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Return how the backward pass grows with k, and the time of a step at the largest k and of the exact solver."""
    rows = value["rows"]
    steps = [row["k"] for row in rows if row["k"] is not None]
    step = {(row["way"], row["k"]): row["step_ms"] for row in rows}
    last = max(steps)
    return [
        Headline(
            f"backward alone, from {min(steps)} to {last} iterations: closed form; unrolled",
            "drawn only",
            f"{backward_growth(rows, CLOSED)}; {backward_growth(rows, UNROLLED)}",
        ),
        Headline(
            f"forward and backward, ms: exact solver; {last} iterations with the closed form; unrolled",
            "drawn only",
            f"{step[EXACT, None]:.1f}; {step[CLOSED, last]:.1f}; {step[UNROLLED, last]:.1f}",
        ),
    ]


EXPERIMENT = Experiment(
    name="computation",
    claim="with the closed-form gradient the cost of back-propagation does not grow with the number of iterations",
    shows="Figure 7, left, and Computational Analysis (Supp.)",
    cost="five minutes on one CPU core; whole networks on a GPU one minute (--part network --device cuda)",
    files=("computation", NETWORK),
    run=run,
    tables={
        "times": times,
        "closed_form": lambda record: backward_growth(record["value"]["rows"], CLOSED),
        "unrolled": lambda record: backward_growth(record["value"]["rows"], UNROLLED),
        "network": FromFile(NETWORK, network_table),
    },
    plots={"computation": draw, NETWORK: FromFile(NETWORK, draw_network)},
    settings=ComputationSettings,
    headlines=headlines,
    seeded=False,
)
