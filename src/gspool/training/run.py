"""A whole training run: the model, the baseline beside it, the table and the report; and its evaluation later."""

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

if TYPE_CHECKING:
    from gspool.data.image_set import Split

BASELINE = "baseline-"


class TrainResult(NamedTuple):
    """What came out: the folder, the model's figures, the baseline's where one was trained, and the report."""

    folder: Path
    model: FitResult
    baseline: FitResult | None
    report: Path | None


class Arm(NamedTuple):
    """One of the models that are trained: its name in tables, its settings and its folder."""

    name: str
    config: TrainConfig
    folder: Path


def train(config: TrainConfig, resume: str | Path | None = None) -> TrainResult:
    """Train what the configuration describes, in a new folder; or go on with a folder that was interrupted.

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
    arms = arms_of(config, folder)
    results = [fit(arm.config, arm.folder, arm.name) for arm in arms]
    report = None
    if config.output.report:
        from gspool.training.report import write_report

        report = write_report(folder / REPORT, arms, results)
    return TrainResult(folder, results[0], results[1] if len(results) > 1 else None, report)


def arms_of(config: TrainConfig, folder: Path) -> list[Arm]:
    """Give the model and, where one is wanted, the baseline: the same in everything but its pooling layer.

    Attributes belong to prototypes, so the zero-shot regularisation is left out of a baseline without them.
    """
    arms = [Arm(config.model.pooling, config, folder)]
    if config.baseline is not None:
        other = deepcopy(config)
        other.model.pooling, other.model.pooling_options = config.baseline, {}
        other.baseline = None
        if "gsp" not in config.baseline:
            other.loss.zsr = 0.0
        arms.append(Arm(config.baseline, other, folder / f"{BASELINE}{config.baseline}"))
    return arms


def evaluate_run(
    run: str | Path,
    split: Split = "test",
    data: DataConfig | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    device: str | None = None,
    progress: bool = False,
) -> Evaluation:
    """Measure the model of a run, or of a folder that `save_pretrained` wrote.

    Args:
        run: the folder.
        split: which part of the data.
        data: other data than the run's own; needed for a folder that is only a model.
        ks: ranks of R@K.
        device: where to compute; a GPU where there is one, unless given.
        progress: show a bar.

    Raises:
        ValueError: if the folder holds no model, or the data does not fit it.
        FileNotFoundError: if the data is not there.
    """
    from gspool.models import Embedder
    from gspool.models.device import chosen_device
    from gspool.models.sharing import model_place

    folder = Path(run).expanduser()
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; give the folder of a run, or of a saved model")
    place = model_place(folder)
    if data is None:
        if not (folder / CONFIG).exists():
            raise ValueError(f"{folder} is a model without a run, so it has no data of its own; give --data.name")
        data = read_config(folder / CONFIG).data
    model = Embedder.from_pretrained(place)
    model.to(chosen_device(device))
    images = image_set(data, split, model.pixels, progress=progress)
    return evaluate_images(model, images, ks=ks, workers=data.workers, progress=progress)
