"""The figures of docs/performance.md, each from the JSON of a GPU benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from pathlib import Path


def draw_growth(growth: dict[str, list[dict[str, Any]]], folder: Path) -> str:
    """Draw time against each size, all else fixed; return the Markdown that shows the figure."""
    position = {"B": 0, "d": 1, "n": 2, "m": 3}
    labels = {"gap": "GAP", "gsp": "GSP", "attention": "attention (timm)", "published": "published, 100 steps"}
    figure, axes = plt.subplots(1, len(growth), figsize=(3.6 * len(growth), 3.6), sharey=True, layout="constrained")
    for axis, (name, points) in zip(axes, growth.items(), strict=True):
        for pool, label in labels.items():
            known = [point for point in points if pool in point]
            axis.loglog([p["size"][position[name]] for p in known], [p[pool] for p in known], marker="o", label=label)
        size = dict(zip("BdnM", points[0]["size"], strict=True))
        fixed = ", ".join(
            f"{key.lower() if key != 'B' else key} {value}"
            for key, value in size.items()
            if key.lower() != name.lower()
        )
        axis.set_title(fixed, fontsize="small")
        axis.set_xlabel(name)
    axes[0].set_ylabel("microseconds")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(labels), fontsize="small")
    figure.savefig(folder / "gpu_growth.png", dpi=110)
    return "![Time against n, m, d and B](images/gpu_growth.png)\n"


def draw_iterations(result: dict[str, Any], folder: Path) -> str:
    """Draw time against the number of steps; return the Markdown that shows the figure."""
    figure, axis = plt.subplots(figsize=(5, 3.4))
    steps = [point["steps"] for point in result["steps"]]
    for name, label in (
        ("unrolled", "published, differentiated automatically"),
        ("closed form", "published, closed form"),
    ):
        axis.loglog(steps, [point[name] for point in result["steps"]], marker="o", label=label)
    for name, label in (("torch", "exact, plain"), ("triton", "exact, kernels")):
        axis.axhline(result["exact"][name], linestyle="--" if name == "torch" else "-", color="black", label=label)
    axis.set_xlabel("k, steps of the iteration")
    axis.set_ylabel("microseconds")
    axis.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(folder / "gpu_iterations.png", dpi=110)
    return "![Time against the number of steps](images/gpu_iterations.png)\n"
