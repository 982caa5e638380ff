"""What an experiment is: a promise about a table or figure of the paper, how it runs, and how it is shown."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

# What stands in the report where nothing has been measured; results are never estimated.
NOT_RUN = "*Not run.*"
# Settings of experiments that are files; their folders are a matter of the machine.
FILES = ("weights",)


class Headline(NamedTuple):
    """A figure of the paper and ours, as README.md shows them; ``paper`` says so where it only draws.

    ``ours`` is a mean and its standard deviation over seeds, where there are several.
    """

    what: str
    paper: str
    ours: str


Holds = Literal["yes", "partly", "no", "cannot tell"]


class Verdict(NamedTuple):
    """Whether what the paper promises was seen, and the figure that decides it."""

    holds: Holds
    because: str


def mean_and_deviation(mean: float, std: float | None, digits: int = 2) -> str:
    """Write a mean with its standard deviation, or say that it comes from one seed.

    Example:
        >>> mean_and_deviation(20.051, 0.149), mean_and_deviation(6.6, None, 1)
        ('20.05 ± 0.15', '6.6 (one seed)')
    """
    return f"{mean:.{digits}f} (one seed)" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


@dataclass(frozen=True)
class RunOptions:
    """What a person may choose about a run, whatever the experiment.

    Args:
        root: the folder of the data sets; None for `gspool.data`'s own place.
        seeds: one run of everything for each; empty for the seeds that the experiment promises.
        device: where to compute, ``cpu`` or ``cuda``.
        results: the folder for the JSON files that the documents are rendered from.
        images: the folder for figures.
        work: the folder for what is finished on the way; a rerun goes on from there.
        quick: a tiny version, which shows that everything works and measures nothing.
        settings: an instance of the experiment's own ``settings`` class; None where it has none.
    """

    root: Path | None = None
    seeds: tuple[int, ...] = ()
    device: str = "cpu"
    results: Path = Path("results")
    images: Path = Path("docs/images")
    work: Path = Path("runs/reproduce")
    quick: bool = False
    settings: Any = None


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    ``run`` writes ``results/FILE.json`` for every name in ``files``; ``render`` makes a Markdown section of them, which
    says `NOT_RUN` where a file is missing. The section starts with the text under the heading: headings are the
    report's, which gives every experiment one of the second level.

    Args:
        name: the word after ``gspool reproduce``.
        promise: what the paper lets one expect, in one sentence.
        shows: the table or figure of the paper.
        cost: how long it takes on what.
        needs: data sets, by their names in `gspool.data`; empty where everything is generated.
        files: names of the results, without ``.json``.
        run: does the work.
        render: takes the folder of the results, gives Markdown.
        settings: a dataclass of options of its own, each of which becomes an option of the command.
        check: refuses options that cannot be meant, and files that are not there, before data are fetched.
        why_not_run: what is missing where it has not been run.
        unfinished: takes the folder of the results and says what of them is still missing; empty where nothing is.
        headlines: takes the value of the first of the files and gives the figures that stand for all of it.
        verdict: takes the record of the first of the files and says whether the promise was seen.
        not_attempted: what of the paper's table or figure is not part of the experiment, and why.
        seeded: whether --seeds may choose its seeds; not where everything is drawn once.
        on_gpu: whether it can compute on a GPU.
        usual_options: what the documents advise to type besides the data and the weights, which ``cost`` is about; None
            for a GPU with ten trainings at a time, where the experiment can make several at a time.

    Example:
        >>> from gspool.experiments.registry import find
        >>> find("toy").needs
        ()
    """

    name: str
    promise: str
    shows: str
    cost: str
    files: tuple[str, ...]
    run: Callable[[RunOptions], None] = field(repr=False)
    render: Callable[[Path], str] = field(repr=False)
    needs: tuple[str, ...] = ()
    settings: type | None = None
    check: Callable[[RunOptions], Any] | None = field(default=None, repr=False)
    why_not_run: str = "nobody has run it yet"
    unfinished: Callable[[Path], str] | None = field(default=None, repr=False)
    headlines: Callable[[Any], list[Headline]] | None = field(default=None, repr=False)
    verdict: Callable[[dict[str, Any]], Verdict] | None = field(default=None, repr=False)
    not_attempted: str = ""
    seeded: bool = True
    on_gpu: bool = True
    usual_options: str | None = None

    def command(self, options: RunOptions | None = None) -> str:
        """Write what a person types for it: with the options of a run, as its provenance shows it.

        The device always stands there, seeds and settings where they are not the promised ones. Folders of a machine
        do not: --root, --results and --work are left out, and of a file there is only the name.

        Example:
            >>> from gspool.experiments.registry import find
            >>> find("toy").command(RunOptions(quick=True))
            'gspool reproduce toy --device cpu --quick'
        """
        words = ["gspool", "reproduce", self.name]
        if options is not None:
            words += ["--seeds", ",".join(map(str, options.seeds))] if options.seeds else []
            words += ["--device", options.device]
            words += ["--quick"] if options.quick else []
            if self.settings is not None and options.settings is not None:
                usual = vars(self.settings())
                for name, value in vars(options.settings).items():
                    words += [f"--{name}", without_folder(name, value)] if value != usual.get(name) else []
        return shlex.join(words)


def without_folder(name: str, value: Any) -> str:
    """Write the value of a setting; of a file only its name, because its folder says nothing to others.

    Example:
        >>> without_folder("weights", "here/resnet50.safetensors"), without_folder("backbone", "keras/resnet50")
        ('resnet50.safetensors', 'keras/resnet50')
    """
    text = str(value)
    is_path = name in FILES or isinstance(value, Path) or Path(text).is_absolute() or text.startswith("~")
    return Path(text).name if is_path else text
