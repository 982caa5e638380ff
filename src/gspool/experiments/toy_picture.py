"""Draw the toy figure: the picture, and the weights of its pixels for every setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib

# Before pyplot, which would look for a screen.
matplotlib.use("Agg")

from matplotlib import pyplot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jaxtyping import Float
    from torch import Tensor

    from gspool.experiments.toy import Selection


def draw(pixels: Float[Tensor, "N 3"], selections: Sequence[Selection], path: Path, side: int) -> None:
    """Save one row of pictures for each mu, the darker the higher the weight, beside the picture itself.

    Every row has its own grey scale, from no weight to its largest, so that the shapes show and not the levels.
    """
    mus = sorted({selection.mu for selection in selections})
    columns = len(selections) // len(mus)
    figure, grid = pyplot.subplots(
        len(mus), columns + 1, figsize=(1.45 * (columns + 1), 1.55 * len(mus)), layout="constrained", squeeze=False
    )
    for row, mu in enumerate(mus):
        of_row = [selection for selection in selections if selection.mu == mu]
        darkest = max(float(selection.weights.max()) for selection in of_row)
        for column, selection in enumerate(of_row, start=1):
            axes = grid[row][column]
            axes.imshow(selection.weights.view(side, side).numpy(), cmap="Greys", vmin=0, vmax=darkest)
            if row == 0:
                named = "linear\nprogramme" if selection.epsilon is None else f"$\\varepsilon$ = {selection.epsilon:g}"
                axes.set_title(named, fontsize=10)
        grid[row][1].set_ylabel(f"$\\mu$ = {mu:g}", fontsize=10)
        if row == len(mus) // 2:
            grid[row][0].imshow(pixels.view(side, side, 3).numpy())
            grid[row][0].set_title("features", fontsize=10)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.set_frame_on(axes.has_data())
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and no version of the library inside, so that the same figure is the same file.
    figure.savefig(path, dpi=150, metadata={"Software": None})
    pyplot.close(figure)
