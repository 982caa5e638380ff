"""An experiment: a table or figure of the paper, how it is run, and how its results are shown."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gspool.executor import Executor
from gspool.terminal.status import WrongArgumentsError

Record = Mapping[str, Any]


class Headline(NamedTuple):
    """One line of the summary table: a figure, the paper's value, ours."""

    what: str
    paper: str
    ours: str


class FromFile(NamedTuple):
    """A table or plot made from another of the experiment's files than the first."""

    file: str
    make: Callable[..., Any]


@dataclass(frozen=True)
class RunOptions:
    """Options of `gspool reproduce`, the same for every experiment.

    Args:
        root: the folder of the data sets; None for the default of `gspool.data`.
        seeds: one run of everything for each; empty for the default seeds of the experiment.
        device: ``cpu`` or ``cuda``.
        results: the folder for the JSON files that the documents are filled from.
        images: the folder for figures.
        work: the folder for finished runs and checkpoints; a rerun continues from there.
        quick: a tiny version, which shows that everything works and measures nothing.
        processes: trainings at a time.
        ray: the address of a Ray cluster; None for this machine.
        gpus: GPUs of one training on Ray.
        seconds: no training starts after this time, running ones stop at their next evaluation; 0 for no limit.
        settings: an instance of the experiment's own ``settings`` class; None where it has none.
    """

    root: Path | None = None
    seeds: tuple[int, ...] = ()
    device: str = "cpu"
    results: Path = Path("results")
    images: Path = Path("docs/images")
    work: Path = Path("runs/reproduce")
    quick: bool = False
    processes: int = 1
    ray: str | None = None
    gpus: float = 0.0
    seconds: float = 0.0
    settings: Any = None

    @property
    def executor(self) -> Executor:
        """Return where trainings run."""
        return Executor(self.processes, self.ray, self.gpus)

    def seeds_or(self, usual: Sequence[int]) -> tuple[int, ...]:
        """Return the seeds asked for, or the usual ones, of which a tiny version has the first alone."""
        return self.seeds or tuple(usual[:1] if self.quick else usual)


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    ``run`` writes ``results/FILE.json`` for every name in ``files``. Tables and plots are made from these files alone,
    by `gspool reproduce` after the run, and by `gspool report` at any time.

    Args:
        name: the word after ``gspool reproduce``.
        claim: what the paper says, in one sentence.
        shows: the table or figure of the paper.
        cost: how long it takes on what.
        files: names of the results, without ``.json``.
        run: does the work.
        tables: functions from a record (of the first file, or `FromFile`) to Markdown, by name. A document shows one
            between ``<!-- table: EXPERIMENT.NAME -->`` and ``<!-- end -->``; one line of text goes into a sentence.
        plots: functions ``(record, path)`` that draw a figure from a record, by the name of the file without ``.png``.
        needs: data sets, by their names in `gspool.data`; empty where everything is generated.
        settings: a dataclass of options of its own, each of which becomes an option of the command.
        check: raises ValueError for options that make no sense, before data are downloaded.
        like: takes the record of a result with a name of its own (other data, another backbone), returns the file whose
            tables and plots it has; the first file unless given.
        missing: takes the record of the first file, returns what it still lacks; empty where it is complete.
        headlines: takes the value of the first file, returns its lines of the summary table.
        seeded: whether --seeds applies.
        on_gpu: whether it can use a GPU.
        parallel: whether --processes, --ray, --gpus and --seconds apply.

    Example:
        >>> from gspool.experiments.registry import find
        >>> find("toy").needs
        ()
    """

    name: str
    claim: str
    shows: str
    cost: str
    files: tuple[str, ...]
    run: Callable[[RunOptions], None] = field(repr=False)
    tables: Mapping[str, Callable[[Record], str] | FromFile] = field(default_factory=dict, repr=False)
    plots: Mapping[str, Callable[[Record, Path], None] | FromFile] = field(default_factory=dict, repr=False)
    needs: tuple[str, ...] = ()
    settings: type | None = None
    check: Callable[[RunOptions], Any] | None = field(default=None, repr=False)
    like: Callable[[Record], str] | None = field(default=None, repr=False)
    missing: Callable[[Record], str] | None = field(default=None, repr=False)
    headlines: Callable[[Any], list[Headline]] | None = field(default=None, repr=False)
    seeded: bool = True
    on_gpu: bool = True
    parallel: bool = False

    def source(self, part: Callable[..., Any] | FromFile) -> FromFile:
        """Return the file that a table or plot is made from, and the function that makes it."""
        return part if isinstance(part, FromFile) else FromFile(self.files[0], part)

    def made_from(self, parts: Mapping[str, Any], file: str, record: Record) -> dict[str, Callable[..., Any]]:
        """Return the tables or plots of a file by name; those of a like file where it is none of the experiment's."""
        if file not in self.files:
            file = self.files[0] if self.like is None else self.like(record)
        sources = {name: self.source(part) for name, part in parts.items()}
        return {name: source.make for name, source in sources.items() if source.file == file}

    def command(self, options: RunOptions | None = None, seeds: Sequence[int] = ()) -> str:
        """Return what a person types for it: with the options of a run, as its provenance shows it.

        The device is always part of it, seeds and settings where they are not the default. Where seeds were asked for,
        ``seeds`` are those of the result, with earlier ones. Folders of the machine are left out: --root, --results
        and --work, and of a file only the name is kept.

        Example:
            >>> from gspool.experiments.registry import find
            >>> find("toy").command(RunOptions(quick=True))
            'gspool reproduce toy --device cpu --quick'
        """
        words = ["gspool", "reproduce", self.name]
        if options is None:
            return shlex.join(words)
        words += ["--seeds", ",".join(map(str, seeds or options.seeds))] if options.seeds else []
        words += ["--device", options.device]
        words += ["--quick"] if options.quick else []
        usual = RunOptions()
        for name in ("processes", "gpus", "seconds"):
            value = getattr(options, name)
            words += [f"--{name}", f"{value:g}"] if value != getattr(usual, name) else []
        if self.settings is not None and options.settings is not None:
            default = vars(self.settings())
            for name, value in vars(options.settings).items():
                shown = Path(value).name if name == "weights" and value else str(value)
                words += [f"--{name}", shown] if value != default.get(name) else []
        return shlex.join(words)


def result_name(name: str, chosen: Sequence[str], usual: Sequence[str]) -> str:
    """Name a result after what was chosen, such as data and backbone, each where it is not the usual one.

    Example:
        >>> result_name("mu", ("cars196", "timm/resnet50"), ("cub", "keras/resnet50"))
        'mu_cars196_timm-resnet50'
    """
    others = [word.replace("/", "-") for word, expected in zip(chosen, usual, strict=True) if word != expected]
    return "_".join([name, *others])


def numbers_of(text: str, what: str) -> tuple[int, ...]:
    """Read comma-separated whole numbers from 0 on, each of them once."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(word.isdecimal() for word in words):
        raise WrongArgumentsError(f"{what} are whole numbers from 0 on with commas between, as 0,1,2; got {text!r}")
    return tuple(map(int, names_of(",".join(str(int(word)) for word in words), what)))


def names_of(text: str, what: str, known: Collection[str] = ()) -> tuple[str, ...]:
    """Read comma-separated names, each of them once, out of those that are ``known`` where they are given."""
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    # The same run would count twice in a mean, and make its deviation too small.
    twice = [each for each in dict.fromkeys(found) if found.count(each) > 1]
    if twice:
        raise WrongArgumentsError(f"{what} must differ, got {', '.join(twice)} more than once in {text!r}")
    unknown = [each for each in found if known and each not in known]
    if unknown:
        raise WrongArgumentsError(f"--{what} are {', '.join(known)}, got {', '.join(unknown)}")
    return found
