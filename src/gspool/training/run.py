"""A whole training run: the model, its baseline and the report; and the evaluation of a run later."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gspool.training.config import DataConfig, TrainConfig
from gspool.training.embed import Evaluation, evaluate_images
from gspool.training.fit import FitResult, fit
from gspool.training.parsing import read_config
from gspool.training.run_folder import CONFIG, REPORT, open_run_folder
from gspool.training.sets import image_set
from gspool.training.signals import TrainingInterruptedError

if TYPE_CHECKING:
    from gspool.data.image_set import Split

BASELINE = "baseline-"


class TrainResult(NamedTuple):
    """The folder of a run, the figures of the model and of the baseline if there is one, and the report."""

    folder: Path
    model: FitResult
    baseline: FitResult | None
    report: Path | None


class Variant(NamedTuple):
    """One of the models that are trained: its name in tables, its settings and its folder."""

    name: str
    config: TrainConfig
    folder: Path


def train(config: TrainConfig, resume: str | Path | None = None) -> TrainResult:
    """Train what the configuration describes in a new folder, or continue an interrupted run.

    Args:
        config: all settings; not used with ``resume``, where those of the folder hold.
        resume: the folder of an interrupted run.

    Raises:
        ValueError: if a setting does not fit, the folder cannot be written or already holds a run.
        TrainingInterruptedError, NonFiniteLossError, CheckpointError: as `fit`.
    """
    if resume is None:
        folder = open_run_folder(config)
    else:
        folder = Path(resume).expanduser()
        config = read_config(folder / CONFIG)
    variants = variants_of(config, folder)
    try:
        results = [fit(variant.config, variant.folder, variant.name) for variant in variants]
    except TrainingInterruptedError as interruption:
        # Of the baseline, too, the run as a whole is resumed.
        raise TrainingInterruptedError(folder, interruption.step, interruption.signum) from None
    report = None
    if config.output.report:
        from gspool.training.report import write_report

        report = write_report(folder / REPORT, variants, results)
    return TrainResult(folder, results[0], results[1] if len(results) > 1 else None, report)


def variants_of(config: TrainConfig, folder: Path) -> list[Variant]:
    """Return the model and, if configured, the baseline: the same in everything but its pooling layer.

    Attributes belong to prototypes, so the zero-shot regularisation is left out of a baseline without them.
    """
    variants = [Variant(config.model.pooling, config, folder)]
    if config.baseline is not None:
        other = deepcopy(config)
        other.model.pooling, other.model.pooling_options = config.baseline, {}
        other.baseline = None
        if config.start_from is not None:
            other.start_from = str(Path(config.start_from) / f"{BASELINE}{config.baseline}")
        if "gsp" not in config.baseline:
            other.loss.zsr = 0.0
        variants.append(Variant(config.baseline, other, folder / f"{BASELINE}{config.baseline}"))
    return variants


def table_rows(variants: Sequence[Variant], results: Sequence[FitResult]) -> dict[str, dict[str, float]]:
    """Return the metrics of every model by name, and below each those of the states that it started from."""
    rows = {}
    for variant, result in zip(variants, results, strict=True):
        rows[variant.name] = result.metrics
        for name, metrics in reversed(result.before.items()):
            rows[f"{variant.name}, {name}"] = metrics
    return rows


def evaluate_run(
    run: str | Path,
    split: Split | None = None,
    data: DataConfig | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    device: str | None = None,
    progress: bool = False,
) -> Evaluation:
    """Measure the model of a run, or of a folder that `save_pretrained` wrote.

    Args:
        run: the folder.
        split: which part of the data. Without one: the test classes of the run's own data and of data with splits of
            its own, and all classes of any other.
        data: other data than the run's own; needed for a folder that is only a model.
        ks: ranks of R@K.
        device: where to compute; a GPU where there is one, unless given.
        progress: show a progress bar.

    Raises:
        ValueError: if the folder holds no model, or the data does not fit it.
        FileNotFoundError: if the data does not exist.
    """
    from gspool.models import Embedder
    from gspool.models.device import chosen_device
    from gspool.models.sharing import model_place

    folder = Path(run).expanduser()
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; give the folder of a run, or of a saved model")
    place = model_place(folder)
    own = read_config(folder / CONFIG).data if (folder / CONFIG).exists() else None
    if data is None:
        if own is None:
            raise ValueError(f"{folder} is a model without a run, so it has no data of its own; give --data.name")
        data = own
    name: Split = split or "test"
    if split is None and data != own and _is_undivided(data):
        name = "all"  # whatever its shares would be, nobody has trained on any of them
    model = Embedder.from_pretrained(place)
    model.to(chosen_device(device))
    images = image_set(data, name, model.pixels, progress=progress)
    evaluation = evaluate_images(model, images, ks=ks, workers=data.workers, progress=progress)
    return evaluation._replace(split=name)


def _is_undivided(data: DataConfig) -> bool:
    """Check whether images of a user come without splits, and no shares were asked for."""
    from gspool.data.folder import has_splits

    if data.name != "folder" or data.root is None or "fractions" in data.options:
        return False
    return not has_splits(Path(data.root).expanduser())
