"""Train one model in one folder: from the first step or the last checkpoint, to its figures on the test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.data import ImageSet
from gspool.files import write_atomic
from gspool.losses.metric_loss import SplitLoss
from gspool.training.checkpoint import BEST, LAST, full_disk_explained, read_checkpoint
from gspool.training.embed import (
    SHOWN,
    Evaluation,
    diagnose,
    embed_images,
    evaluate_images,
    flat_warning,
    measure_threshold,
    searched,
    write_classes,
    write_classifier,
    write_threshold,
)
from gspool.training.frozen import (
    earlier_figures,
    head_first,
    load_proxies,
    token_data,
    token_head,
    trains_on_tokens,
)
from gspool.training.gpu_data import TensorSet
from gspool.training.heads import head_config
from gspool.training.loop import LoopOutcome, duration, run_loop
from gspool.training.metric_learning import (
    MetricLearning,
    ModelAndLoss,
    build_loss,
    build_model,
    build_optimiser,
    learned_values,
    open_warm_start,
    plan_batches,
    with_smaller_batches,
)
from gspool.training.processes import (
    StopRequest,
    TerminatedError,
    TrainingInterruptedError,
    any_process,
    is_launched,
    launch,
    leave_with_launcher,
    make_fabric,
    precision_of,
    stop_on_signal,
)
from gspool.training.report_figures import choose_examples, has_pictures, write_examples
from gspool.training.run_folder import (
    HEAD,
    MODEL,
    has_begun,
    log_to,
    only_training,
    process_rank,
    read_result,
    write_result,
    write_versions,
)
from gspool.training.sets import (
    check_beginning,
    check_fit,
    check_monitor,
    check_run,
    check_sizes,
    check_splits,
    placed_on,
    prepare_splits,
)

if TYPE_CHECKING:
    from gspool.data.image_set import Split
    from gspool.training.config import TrainConfig

EMBEDDINGS = "embeddings.safetensors"


class FitResult(NamedTuple):
    """A finished run: its folder, the figures of its best model on the test set, and how it went.

    ``metrics`` holds p@1, p@r, map@r and r@k in [0, 1], measured on ``classes``, ``queries`` and ``gallery``, and the
    accuracy of a classifier. ``validation`` is the best value that was watched, or None. ``weights_entropy`` (1 is
    average pooling) and ``mean_weights`` (of every place, relative to equal weights) describe the pooling layer on the
    test set, and are None where it has no weights. ``vectors_seen`` is how far the warm start of GSP came if that model
    is still in it.
    ``ending`` is max_steps, patience or time (`trainer.max_seconds`: the run is not finished, and fit goes on with it).
    ``curve`` has a row per evaluation, ``learned`` the mu and epsilon of GSP. ``before`` holds the metrics of what the
    run started from: "nothing learned" of a frozen backbone, "head alone" of a network that was tuned after it.
    ``intervals`` are [low, high] of 95 % over classes by metric, ``hardest`` the classes of the lowest MAP@R,
    ``confused`` the pairs of classes that are most often mistaken for each other (`gspool.training.embed`), and
    ``threshold`` the content of threshold.json: from which similarity on two images are called the same.
    """

    folder: Path
    metrics: dict[str, float]
    best_step: int
    steps: int
    validation: float | None
    weights_entropy: float | None
    vectors_seen: int | None = None
    classes: int = 0
    queries: int = 0
    gallery: int = 0
    ending: str = "max_steps"
    curve: Sequence[dict[str, Any]] = ()
    learned: Mapping[str, float] = {}
    mean_weights: list[float] | None = None
    seconds: float = 0.0
    images_per_second: float = 0.0
    before: Mapping[str, dict[str, float]] = {}
    intervals: Mapping[str, list[float]] = {}
    hardest: Sequence[dict[str, Any]] = ()
    confused: Sequence[dict[str, Any]] = ()
    threshold: Mapping[str, Any] | None = None


def fit(
    config: TrainConfig,
    folder: str | Path,
    title: str | None = None,
    *,
    model: Any = None,
    sets: Mapping[Split, ImageSet | TensorSet] | None = None,
    listed: Mapping[Split, ImageSet] | None = None,
) -> FitResult:
    """Train, keep the model of the best evaluation, and measure it on the test set.

    A folder that already holds a checkpoint of this configuration goes on from there, and gives the numbers that it
    would have given without the interruption. One that has finished is read.

    Args:
        config: all settings.
        folder: where checkpoints, metrics, the model and the figures go.
        title: what the progress bar calls it.
        model: a model made by the caller instead of the configured one: an `Embedder`, or another module with
            ``embed``, ``freeze`` and ``out_dim`` such as `FeatureMapEmbedder`. It holds the best state afterwards.
        sets: data made by the caller, by split, instead of the configured data: train, test, and validation if that is
            watched. They are used as they are, with their own transforms.
        listed: the configured data where `check_run` has listed and checked it already.

    Raises:
        ValueError: before any training, if a setting does not fit or another process trains there.
        TrainingInterruptedError: after Ctrl-C or SIGTERM; everything is saved.
        NonFiniteLossError: if the loss becomes NaN or infinite.
        CheckpointError: if the disk is full, or a checkpoint is damaged; the last good checkpoint is kept.
    """
    folder = Path(folder)
    finished = read_result(folder)
    if finished is not None:
        if model is not None:
            _load_best(model, folder)
        return FitResult(folder=folder, **finished)
    if model is None and not has_begun(folder):
        check_beginning(config)
    with stop_on_signal() as request:
        try:
            if process_rank() > 0 and is_launched():
                leave_with_launcher()
            with only_training(folder, config) if process_rank() == 0 else nullcontext():
                return _fit(config, folder, title or config.model.pooling, model, sets, listed, request)
        except (KeyboardInterrupt, TerminatedError):
            raise TrainingInterruptedError(folder, None, request.signum) from None
        except TrainingInterruptedError as interruption:
            # Of its first phase, too, the run as a whole is resumed.
            raise TrainingInterruptedError(folder, interruption.step, interruption.signum) from None


def _fit(
    config: TrainConfig,
    folder: Path,
    title: str,
    model: Any,
    sets: Mapping[Split, ImageSet | TensorSet] | None,
    listed: Mapping[Split, ImageSet] | None,
    request: StopRequest,
) -> FitResult:
    """Train in a folder that this run owns."""
    trainer = config.trainer
    config.check()
    check_monitor(config)
    fabric = make_fabric(trainer, find_unused_parameters=config.schedule.warmup_epochs > 0)
    if trainer.threads:
        torch.set_num_threads(trainer.threads)
    shown = trainer.progress and process_rank() == 0
    if sets is None and listed is None:
        # Before the model, which may download weights: missing data must not wait for that.
        listed = check_run([config], begun=True, progress=shown)
    model = build_model(config) if model is None else model
    images: dict[Split, Any] = prepare_splits(config, listed, model.pixels, shown) if listed else dict(sets or {})
    check_splits(config, images)
    train = images["train"]
    on_tokens = config.model.freeze == "all" and trains_on_tokens(config, model, train, title if shown else None)
    # Neither tokens nor images in memory of the device are stacked; to read all sizes is a check of the data.
    if not (on_tokens or config.data.resident or config.data.check == "none"):
        check_sizes(images)
    before = earlier_figures(config)
    earlier = None if config.start_from is None else Path(config.start_from)
    if config.head.steps and config.model.freeze != "all":
        earlier = folder / HEAD
        first = fit(head_first(config), earlier, f"{title}, head alone", model=model, sets=images)
        before = {**first.before, "head alone": first.metrics}
        model.freeze(config.model.freeze)
    config = with_smaller_batches(config, train.labels, shown)
    if shown:
        print(describe_training(config, title, fabric.device, model.out_dim), flush=True)
    # A module of the caller need not have a head.
    parts = getattr(getattr(model, "head", None), "parts", ())
    loss = build_loss(config.loss, train.num_classes, model.out_dim, config.data.batch_size, trainer.seed, parts)
    check_fit(model, loss, train, config.model.pooling)
    plan_batches(config, train.labels, rank=0, world_size=1)
    # Refuses wrong names in optimiser.multipliers before tokens are computed; of those, the head alone learns.
    learns = torch.nn.ModuleDict({"head": model.head}) if on_tokens else model
    build_optimiser(config.optimiser, ModelAndLoss(learns, loss))
    if earlier is not None:
        load_proxies(loss, earlier)
    # Of a frozen backbone the head learns from tokens, which the first process computes before there are others.
    tokens = token_data(model, images, config, fabric.device, shown) if on_tokens and process_rank() == 0 else None
    launch(fabric, request)
    learner, data, settings = model, images, config
    if on_tokens:
        tokens = tokens or token_data(model, images, config, fabric.device, shown)
        learner, data = token_head(model, tokens, config, fabric.device), tokens.sets
        settings = head_config(config, learner)
    else:
        data = placed_on(fabric.device, images, config.data, model, shown)
        _prepare_model(config, model, fabric)
    watched = None if trainer.monitor_split == "none" else data[trainer.monitor_split]
    task = MetricLearning(learner, loss, settings, data["train"], watched, fabric)
    task.keeps_start = on_tokens or earlier is not None
    with full_disk_explained(folder), log_to(folder) as log:
        log.info("%s; %s; %s%s", train, title, folder, ", on stored tokens" if on_tokens else "")
        if process_rank() == 0:
            write_versions(folder, f"{fabric.device}, {trainer.devices} x {trainer.num_nodes}")
        if on_tokens:
            if watched is not None and isinstance(loss.metric, SplitLoss):
                task.evaluate_watched()  # the weight of patches beside a class token, as at every evaluation
            start = evaluate_images(learner, data["test"], ks=config.output.ks, classifier=task.classifier)
            before = {**before, "nothing learned": start.figures()}
        outcome = run_loop(task, fabric, trainer, config.schedule, folder, title, request=request)
        evaluation = evaluate_images(
            learner, data["test"], ks=config.output.ks, workers=config.data.workers, classifier=task.classifier
        )
        threshold = None
        if watched is not None and task.classifier is None and hasattr(model, "save_pretrained"):
            vectors = embed_images(learner, watched, workers=config.data.workers).embeddings
            wanted = config.output.precision
            try:
                threshold = measure_threshold(vectors, watched.labels, trainer.monitor_split, wanted)
            except ValueError as error:  # no reason to lose the run
                log.warning("there is no threshold.json: %s", error)
        if task.classifier is not None and process_rank() == 0:
            write_classifier(folder, task.classifier.state_dict(), train.class_names)
        result = _finish(config, folder, model, outcome, evaluation, images["test"], before, threshold)
        for warning in run_warnings(config, result):
            log.warning("%s", warning)
    signum = any_process(request.signum, fabric.device)
    if signum:
        raise TrainingInterruptedError(folder, result.steps, signum)
    return result


def _prepare_model(config: TrainConfig, model: Any, fabric: Any) -> None:
    """Share batch norm among GPUs where asked, lay weights out as tensor cores read them."""
    if config.trainer.compile and not hasattr(model, "backbone"):
        raise ValueError("trainer.compile compiles model.backbone, which this model does not have; leave it out")
    if config.trainer.sync_batchnorm and fabric.world_size > 1:
        torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if fabric.device.type == "cuda":
        model.to(memory_format=torch.channels_last)


def _finish(
    config: TrainConfig,
    folder: Path,
    model: Any,
    outcome: LoopOutcome,
    evaluation: Evaluation,
    test: ImageSet | TensorSet,
    before: Mapping[str, dict[str, float]],
    threshold: dict[str, Any] | None,
) -> FitResult:
    """Save the best model and what was measured, the figures last of all."""
    model.freeze(config.model.freeze)
    diagnosis = diagnose(evaluation, test, next(model.parameters()).device)
    warm_start = open_warm_start(model)
    result = FitResult(
        folder=folder,
        metrics=evaluation.figures(),
        best_step=outcome.best_step,
        steps=outcome.steps,
        validation=outcome.best_value,
        weights_entropy=evaluation.entropy,
        vectors_seen=None if warm_start is None else len(warm_start.memory),
        classes=evaluation.classes,
        queries=evaluation.metrics.queries,
        gallery=evaluation.metrics.gallery,
        ending=outcome.ending,
        curve=outcome.curve,
        learned=learned_values(model),
        mean_weights=evaluation.mean_weights,
        seconds=round(outcome.seconds, 3),
        images_per_second=round(outcome.steps * config.data.batch_size / max(outcome.training_seconds, 1e-9), 1),
        before=before,
        intervals=diagnosis.intervals,
        hardest=diagnosis.classes[:SHOWN],
        confused=diagnosis.confused,
        threshold=threshold,
    )
    if process_rank() == 0:
        if hasattr(model, "save_pretrained"):
            card = {"data": config.data.name}
            model.save_pretrained(folder / MODEL, metrics=result.metrics, model_card_kwargs=card)
        if threshold is not None:
            write_threshold((folder, folder / MODEL), threshold)
        write_classes(folder, diagnosis)
        if config.output.embeddings:
            _write_embeddings(folder, evaluation, test)
        if config.output.report and has_pictures(test):
            write_examples(folder, choose_examples(model, test, evaluation.embeddings, diagnosis.rows))
        if outcome.ending != "time":
            write_result(folder, {name: value for name, value in result._asdict().items() if name != "folder"})
    return result


def describe_training(config: TrainConfig, title: str, device: torch.device, out_dim: int) -> str:
    """Return what is trained, for how long and on what, as lines for the start of a run."""
    model, trainer = config.model, config.trainer
    options = ", ".join(f"{name} {value}" for name, value in model.backbone_options.items())
    words = {"none": "all of it learns", "batchnorm": "batch norm frozen", "all": "frozen"}
    frozen = words.get(model.freeze, f"{model.freeze} frozen")
    limit = f", at most {duration(trainer.max_seconds)}" if trainer.max_seconds else ""
    where = f"{device}, {precision_of(trainer, device)}" + (
        f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    )
    return (
        f"{title:9s} {model.backbone}{f' ({options})' if options else ''}, {frozen}; "
        f"{out_dim} dimensions, loss {config.loss.name}\n"
        f"steps     at most {trainer.max_steps:,} of {config.data.batch_size} pictures, evaluated every "
        f"{trainer.evaluate_every:,}{limit}; on {where}"
    )


def run_warnings(config: TrainConfig, result: FitResult) -> list[str]:
    """Return what a user should know about a finished run: prototypes that were never set, flat weights."""
    model = config.model
    if result.vectors_seen is None:
        flat = flat_warning(result.weights_entropy, model.pooling)
        return [] if flat is None else [flat]
    return [
        f"the {model.pooling} of this model (step {result.best_step}) has not set its prototypes, and pools as average "
        f"pooling: it has seen {result.vectors_seen:,} vectors and warm_start asks for "
        f"{model.pooling_options['warm_start']:,}; lower --model.pooling_options.warm_start (not below the number of "
        "prototypes), or train longer with --trainer.max_steps"
    ]


def _write_embeddings(folder: Path, evaluation: Evaluation, test: ImageSet | TensorSet) -> None:
    """Write the embeddings and labels of the test images; queries and gallery apart where the set has both."""
    from safetensors.torch import save

    names = ("embeddings", "labels", "gallery", "gallery_labels")
    parts = zip(names, searched(evaluation.embeddings.cpu(), test), strict=False)
    write_atomic(folder / EMBEDDINGS, save({name: part.contiguous() for name, part in parts}))


def _load_best(model: Any, folder: Path) -> None:
    """Load the best state of a finished run into a model of the caller; that of a frozen run is its head alone."""
    if (folder / BEST).exists():
        state = read_checkpoint(folder / BEST, ("model",))["model"]
    else:
        last = read_checkpoint(folder / LAST, ("module",))
        module = last["module"] | last.get("ema", {}).get("averages", {})
        state = {name.removeprefix("model."): value for name, value in module.items() if name.startswith("model.")}
    if all(name.startswith("head.") for name in state):
        model.head.load_state_dict({name.removeprefix("head."): value for name, value in state.items()})
    else:
        model.load_state_dict(state)
