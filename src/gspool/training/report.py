"""report.html: one file that shows how a run went, what it finds, and where it looks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gspool.files import write_atomic
from gspool.models import Embedder
from gspool.training import report_figures
from gspool.training.embed import embed_images
from gspool.training.metrics_log import read_metrics
from gspool.training.parsing import as_yaml
from gspool.training.run_folder import MODEL, process_rank
from gspool.training.sets import image_set
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.training.fit import FitResult
    from gspool.training.run import Arm

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .9rem; border-bottom: 1px solid #ccc; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }} img {{ max-width: 100%; height: auto; }}
pre {{ background: #f4f4f4; padding: 1rem; overflow-x: auto; font-size: .85rem; }} h2 {{ margin-top: 2.5rem; }}
</style></head><body>
<h1>{title}</h1>
<p>{lead}</p>
<h2>Figures on the test classes</h2>
{table}
<h2>Curves</h2>
{curves}
<h2>What is found</h2>
<p>A query on the left, its nearest neighbours in order; a green frame is the right class, a red one is not.</p>
{neighbours}
<h2>Where the model looks</h2>
<p>The weights with which the pooling layer takes the tokens of an image, bright where they are large. Even weights (the
entropy is 1) are average pooling.</p>
{weights}
<h2>Settings</h2>
<pre>{config}</pre>
<p>Written by gspool {version}.</p>
</body></html>
"""


def write_report(path: Path, arms: Sequence[Arm], results: Sequence[FitResult], examples: int = 6) -> Path:
    """Draw the report of finished runs into one file that needs no other; the first run is the model.

    Where several processes train, all of them call this, because they share the embedding; the first one writes.

    Args:
        path: the file.
        arms: what was trained.
        results: their figures, in the same order.
        examples: how many queries and weighted images are shown of each.
    """
    config = arms[0].config
    neighbours, weights = [], []
    for arm in arms:
        model = Embedder.from_pretrained(arm.folder / MODEL)
        test = image_set(arm.config.data, "test", model.pixels)
        shown = embed_images(model, test, workers=arm.config.data.workers)
        caption = html.escape(arm.name)
        neighbours.append(f"<h3>{caption}</h3>{report_figures.neighbours(shown.embeddings, test, examples)}")
        picture = report_figures.weights(model, test, examples)
        weights.append(f"<h3>{caption}</h3>{picture or '<p>This layer has no weights.</p>'}")
    test_words = f"{test.num_classes} classes with {len(test):,} images that training never saw"
    page = PAGE.format(
        title=html.escape(f"{config.model.pooling} on {config.data.name}"),
        lead=html.escape(
            f"{config.model.backbone}, {config.model.dim} numbers, loss {config.loss.name}, "
            f"{results[0].steps} steps of {config.data.batch_size} images. Tested on {test_words}."
        ),
        table=_table(arms, results),
        curves=report_figures.curves({arm.name: read_metrics(arm.folder) for arm in arms}),
        neighbours="\n".join(neighbours),
        weights="\n".join(weights),
        config=html.escape(as_yaml(config)),
        version=__version__,
    )
    if process_rank() == 0:
        write_atomic(path, page.encode())
    return path


def _table(arms: Sequence[Arm], results: Sequence[FitResult]) -> str:
    names = list(results[0].metrics)
    head = "".join(f"<th>{html.escape(name.upper())}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{html.escape(arm.name)}</td>"
        + "".join(f"<td>{100 * result.metrics[name]:.2f}</td>" for name in names)
        + f"<td>{result.best_step}</td><td>{_number(result.weights_entropy)}</td></tr>"
        for arm, result in zip(arms, results, strict=True)
    )
    return f"<table><tr><th></th>{head}<th>best step</th><th>entropy of weights</th></tr>{rows}</table>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
