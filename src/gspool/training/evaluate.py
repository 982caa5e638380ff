"""`gspool evaluate`: measure a trained model on the data of its run, or on other data."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gspool.data.folder import has_splits
from gspool.evaluation.checked_input import as_ranks
from gspool.evaluation.verification import read_threshold
from gspool.files import write_atomic
from gspool.models import Embedder
from gspool.models.device import chosen_device
from gspool.models.sharing import model_place
from gspool.terminal.output import check_file_writable
from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import checking_arguments
from gspool.terminal.table import show_table
from gspool.training.config import DataConfig
from gspool.training.embed import (
    Evaluation,
    diagnose,
    evaluate_images,
    flat_warning,
    measure_threshold,
    read_classifier,
    result_lines,
    threshold_in_words,
    write_threshold,
)
from gspool.training.parsing import instantiate, read_config, read_yaml
from gspool.training.run_folder import CONFIG
from gspool.training.sets import describe_data, fetch_data, image_set

if TYPE_CHECKING:
    from gspool.data.image_set import Split

HELP = """
Measure a trained model: P@1, P@R, MAP@R and R@K on the data it was trained for, or on other data; of a classifier also
its accuracy on its own data.

    gspool evaluate runs/NAME                                      its own test classes
    gspool evaluate runs/NAME --split validation
    gspool evaluate runs/NAME --data pictures/                     other images: pictures/CLASS/picture.jpg or a CSV
    gspool evaluate runs/NAME --data cub --data.root datasets/     another data set
    gspool evaluate path/to/model --data.name glyphs               a folder written by save_pretrained
    gspool evaluate runs/NAME --split validation --calibrate 0.95  a threshold of "same or not" with that precision

Every image is searched among all others of the split (queries in the gallery, where the data has both). Other images
are measured whole, with all their classes, unless they come with splits of their own: folders train/, val/, test/, or a
column split in the CSV. --data.root alone says where the run's own data is now. Below the table are 95 % intervals over
classes, the classes with the lowest MAP@R and those that are most often confused; --json FILE has all classes.
"""


def evaluate_command(arguments: Sequence[str]) -> None:
    """Evaluate, and print a table; write JSON where asked."""
    # The run's own data is the default of every option of the data, so it is read before they are parsed.
    configs = (Path(word) / CONFIG for word in arguments if not word.startswith("-"))
    own = next((read_config(path).data for path in configs if path.is_file()), None)
    words, is_other = named_data(arguments, own)
    if own is not None and is_other:
        own = replace(own, root=None, options={})  # those of another data set have no meaning here
    parser = evaluate_parser(own)
    namespace: Any = parser.parse_args(words)
    with checking_arguments():
        as_ranks(namespace["ks"])
    json_file = None if namespace["json"] is None else Path(namespace["json"])
    if json_file is not None:
        check_file_writable(json_file, "--json")
    data = None
    if own is not None or any(word.startswith("--data") for word in words):
        data = instantiate(parser, namespace)["data"]
    if namespace["download"] and data is not None:
        fetch_data(data)
    split: Any = namespace["split"] or (None if is_other else "test")
    evaluation = evaluate_run(
        namespace["run"],
        split,
        data,
        namespace["ks"],
        namespace["device"],
        namespace["progress"],
        namespace["calibrate"],
    )
    show_table(evaluation.split, {Path(namespace["run"]).name: evaluation.figures()})
    print(f"{evaluation.split}: {evaluation.counts()}")
    diagnosis, threshold = evaluation.diagnosis, evaluation.threshold
    assert diagnosis is not None
    print("\n".join(result_lines(diagnosis.intervals, diagnosis.classes, diagnosis.confused, evaluation.classes)))
    if threshold is not None:
        print(threshold_in_words(threshold))
    if evaluation.entropy is not None:
        print(f"entropy of the pooling weights {evaluation.entropy:.4f} (1 is average pooling)")
    if evaluation.warning is not None:
        print(f"gspool evaluate: warning: {evaluation.warning}", file=sys.stderr)
    if json_file is not None:
        content = {
            **evaluation.metrics.as_dict(),
            **evaluation.figures(),
            "classes": evaluation.classes,
            "weights_entropy": evaluation.entropy,
            "split": evaluation.split,
            "intervals": diagnosis.intervals,
            "by_class": diagnosis.classes,
            "confused": diagnosis.confused,
            "threshold": threshold,
        }
        write_atomic(json_file, (json.dumps(content, indent=2) + "\n").encode())


def evaluate_run(
    run: str | Path,
    split: Split | None = None,
    data: DataConfig | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    device: str | None = None,
    progress: bool = False,
    calibrate: float | Literal["f1"] | None = None,
) -> Evaluation:
    """Measure the model of a run, or of a folder that `save_pretrained` wrote, and its results by class.

    Args:
        run: the folder.
        split: which part of the data. Without one: the test classes of the run's own data and of data with splits of
            its own, and all classes of any other.
        data: other data than the run's own; needed for a folder that is only a model.
        ks: ranks of R@K.
        device: where to compute; a GPU where there is one, unless given.
        progress: show progress bars, and what is measured.
        calibrate: choose the threshold of "same or not" on this data and write it as threshold.json beside the model:
            a wanted precision, or "f1". Without it, the threshold that the model has is measured.

    Raises:
        ValueError: if the folder holds no model, or the data does not fit it.
        FileNotFoundError: if the data does not exist.
    """
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
    on = chosen_device(device)
    model.to(on)
    images = image_set(data, name, model.pixels, progress=progress)
    if progress:
        settings = model.settings
        print(describe_data(data, {name: images}))
        print(f"model     {settings.pooling} on {settings.backbone}, {model.out_dim} dimensions; on {on}")
    is_own = own is not None and replace(data, root=own.root) == own
    classifier, warnings = None, []
    try:
        # Wherever the run's own data is now: its classes go by their names.
        classifier = read_classifier(folder, on, images.class_names) if is_own else None
    except ValueError as error:
        warnings.append(f"the accuracy of the classifier is not measured: {error}")
    evaluation = evaluate_images(model, images, ks=ks, workers=data.workers, progress=progress, classifier=classifier)
    similarity = None if calibrate is not None else read_threshold(Path(place))
    threshold = None
    if calibrate is not None or similarity is not None:
        wanted = None if calibrate == "f1" else calibrate
        threshold = measure_threshold(evaluation.embeddings, images.labels, name, wanted, similarity)
        if calibrate is not None:
            write_threshold([Path(place), folder], threshold)
    flat = flat_warning(evaluation.entropy, model.settings.pooling)
    warnings += [] if flat is None else [flat]
    return evaluation._replace(
        split=name,
        diagnosis=diagnose(evaluation, images, on),
        threshold=threshold,
        warning="; ".join(warnings) or None,
    )


def _is_undivided(data: DataConfig) -> bool:
    """Check whether images of a user come without splits, and no shares were asked for."""
    if data.name != "folder" or data.root is None or "fractions" in data.options:
        return False
    return not has_splits(Path(data.root).expanduser())


def evaluate_parser(own: DataConfig | None) -> TeachingParser:
    """Build the parser; the data of the run is the default of every option of the data."""
    parser = TeachingParser("gspool evaluate", HELP, "gspool evaluate RUN [--split NAME] [--data.OPTION VALUE ...]")
    parser.add_argument("run", metavar="RUN", help="The folder of a run, or of a saved model.")
    parser.add_argument(
        "--split",
        choices=["train", "validation", "test"],
        default=None,
        help="Which classes; test where there are splits.",
    )
    parser.add_argument("--ks", type=list[int], default=[1, 2, 4, 8], help="Ranks K of R@K.")
    parser.add_argument("--device", type=str, default=None, help="cpu, cuda ...; a GPU where there is one.")
    parser.add_argument("--json", type=str, default=None, metavar="FILE", help="Write the figures to a file as well.")
    parser.add_argument("--progress", type=bool, default=True, help="Show a progress bar.")
    parser.add_argument(
        "--calibrate",
        type=Literal["f1"] | float | None,
        default=None,
        metavar="PRECISION",
        help="Choose the similarity from which two images are called the same on this data, with this precision or the "
        "largest F1 (f1), and write it as threshold.json beside the model.",
    )
    parser.add_argument("--download", action="store_true", help="Download the data set first if it is missing.")
    parser.add_class_arguments(DataConfig, "data", as_positional=False)
    parser.describe(
        "--data", "DATA", "A folder or a CSV list of images, a data set by name, or a YAML file of the options below."
    )
    if own is not None:
        parser.set_defaults({f"data.{name}": value for name, value in vars(own).items()})
    return parser


def named_data(arguments: Sequence[str], own: DataConfig | None) -> tuple[list[str], bool]:
    """Write ``--data NAME`` and ``--data PICTURES`` as the options they stand for; a YAML file stays what it is.

    Return also whether they name other data than the run's own. Another name does; so does ``--data PICTURES``, unless
    it is the folder that the run was trained on. ``--data.root`` alone says where the run's own data is now.

    Example:
        >>> named_data(["runs/first", "--data", "cub", "--split", "test"], DataConfig("cub"))
        (['runs/first', '--data.name', 'cub', '--split', 'test'], False)
    """
    known = own or DataConfig()
    words: list[str] = []
    is_other = own is None
    for word in [part for each in arguments for part in (each.split("=", 1) if each.startswith("--data") else [each])]:
        flag = words[-1] if words else ""
        if flag == "--data" and (Path(word).is_dir() or word.lower().endswith(".csv")):
            words[-1:] = ["--data.name", "folder", "--data.root"]
            place = Path(known.root).expanduser().resolve() if known.name == "folder" and known.root else None
            is_other |= place != Path(word).resolve()
        elif flag == "--data" and Path(word).is_file():
            content = read_yaml(word)
            is_other |= isinstance(content, dict) and content.get("name", known.name) != known.name
        elif flag == "--data" and not word.startswith("{"):
            words[-1] = flag = "--data.name"
        if flag == "--data.name":
            is_other |= word != known.name
        words.append(word)
    return words, is_other
