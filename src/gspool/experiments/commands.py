"""`gspool reproduce` and `gspool report`: run an experiment, list them, fill the documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import NonNegativeFloat, PositiveInt

from gspool.data.splits import LARGEST_SEED
from gspool.experiments import registry
from gspool.experiments.experiment import RunOptions, numbers_of
from gspool.experiments.plots import draw_plots
from gspool.experiments.tables import read_table
from gspool.provenance import is_quick, read_result
from gspool.terminal.output import check_writable
from gspool.terminal.parser import TeachingParser
from gspool.terminal.signals import exit_with_line
from gspool.terminal.status import WrongArgumentsError, checking_arguments, run_told

if TYPE_CHECKING:
    from gspool.experiments.experiment import Experiment

REPRODUCE = """Run one table or figure of the paper, and write what was measured to results/NAME.json.

    gspool reproduce --list                      names, costs, and what has been run
    gspool reproduce tokens
    gspool reproduce collage --root ~/data --download --device cuda
    gspool reproduce collage --quick             a tiny version, to see that everything works

A run that was interrupted continues: finished trainings are in the folder of --work.
`gspool reproduce NAME --help` lists the options of the experiment NAME."""
REPORT = """Fill README.md and docs/*.md with the numbers and tables of results/*.json.

    gspool report
    gspool report --check        change nothing; fail if a document is out of date
    gspool report --plots        draw the figures in docs/images again, too"""


# The main tables of a result, which stand first; documents show all.
SHOWN_TABLES = 2


def run(command: str, arguments: Sequence[str]) -> int:
    """Run one of the commands and return its exit status."""
    commands = {"reproduce": reproduce_command, "report": report_command}
    with exit_with_line(lambda: "stopped; finished runs are kept, the same command continues"):
        return run_told(f"gspool {command}", commands[command], arguments)


def reproduce_command(arguments: Sequence[str]) -> None:
    """Run an experiment, or list all of them."""
    words = list(arguments)
    if not words or words[0].startswith("-"):
        list_command(words)
        return
    with checking_arguments():
        experiment = registry.find(words[0])
    namespace = reproduce_parser(experiment).parse_args(words[1:])
    with checking_arguments():
        options = options_of(experiment, namespace)
        if experiment.check is not None:
            experiment.check(options)
    # A tiny version writes its results into the folder of --work, unless --results names another.
    where = "--work" if options.quick and namespace["results"] is None else "--results"
    for flag, folder in ((where, options.results), ("--work", options.work), (where, options.images)):
        check_writable(folder, flag)
    if options.quick:
        print(f"--quick: a tiny version of {experiment.name}, to see that everything works; its numbers mean nothing")
    else:
        print(f"{experiment.name}: {experiment.shows}; {experiment.cost}\nclaim: {experiment.claim}")
    if namespace["download"] and not options.quick:
        download(experiment, options)
    with written_files(experiment, options) as written:
        experiment.run(options)
        results = [path.stem for path in written() if path.suffix == ".json"]
        others = [name for name in results if name not in experiment.files]
        draw_plots(experiment, options.results, options.images, others)
        for name in results:
            show_tables(experiment, options, name)


def show_tables(experiment: Experiment, options: RunOptions, name: str) -> None:
    """Draw the main tables of a result in the terminal; those of a tiny version are made, but not shown."""
    from gspool.terminal.table import show_rows

    record = read_result(options.results / f"{name}.json")
    tables = experiment.made_from(experiment.tables, name, record)
    made = {title: text for title, make in tables.items() if (text := make(record)).startswith("|")}
    if options.quick:
        print(f"tables made, not shown: {', '.join(made)}", flush=True)
        return
    for title, text in [*made.items()][:SHOWN_TABLES]:
        # Bold is for documents.
        show_rows(f"{name}: {title}", read_table(text.replace("**", "")))


def list_command(words: list[str]) -> None:
    """List the experiments; without --list a name is missing, or stands after options."""
    if not {"--list", "--help", "-h"} & {*words}:
        names = ", ".join(registry.names())
        raise WrongArgumentsError(f"name an experiment before any option, one of {names}; --list describes them")
    namespace = reproduce_parser(None).parse_args(words)
    show_list(Path(namespace["results"] or "results"))


def show_list(results: Path) -> None:
    """Print every experiment with its claim and cost, and its status where there is a folder of results."""
    from rich.console import Console
    from rich.table import Table

    here = results.is_dir()
    shown = Table(title="gspool reproduce NAME", title_justify="left", show_lines=True)
    # A name that is broken into lines cannot be copied.
    shown.add_column("name", no_wrap=True)
    for column in ("shows", "claim", "cost", *(("status",) if here else ())):
        shown.add_column(column, overflow="fold")
    for name in registry.names():
        each = registry.find(name)
        status = [registry.status(each, results)] if here else []
        shown.add_row(name, each.shows, each.claim, each.cost, *status)
    Console().print(shown)
    if not here:
        print(f"there is no folder {results}: give --results FOLDER to see what has been run")


def download(experiment: Experiment, options: RunOptions) -> None:
    """Download the data sets of an experiment that are missing, from their official addresses."""
    from gspool import data

    chosen = getattr(options.settings, "data", None)
    if chosen == "folder":
        raise WrongArgumentsError(
            "--download is for published data sets; put your own images into folders under --root"
        )
    for name in experiment.needs if chosen is None else (chosen,):
        data.create(name, options.root, "train", download=True)


def reproduce_parser(experiment: Experiment | None) -> TeachingParser:
    """Make the parser of one experiment with its own settings, or of the command without one."""
    if experiment is None:
        parser = TeachingParser("gspool reproduce", REPRODUCE, "gspool reproduce NAME [--OPTION VALUE ...]")
        parser.add_argument("--list", action="store_true", help="List the experiments, their costs and their status.")
    else:
        about = f"{experiment.claim} ({experiment.shows}).\n{experiment.cost}"
        # Errors point to the help of the experiment, the only page that lists its own options.
        prog = f"gspool reproduce {experiment.name}"
        parser = TeachingParser(prog, about, f"{prog} [--OPTION VALUE ...]")
    seeds = "Comma-separated seeds; default: those of the experiment."
    if experiment is not None and not experiment.seeded:
        seeds = f"Not for {experiment.name}: its seed is fixed."
    parser.add_argument("--root", type=str, default=None, help="Folder of the data sets ($GSPOOL_DATA).")
    parser.add_argument("--download", action="store_true", help="Download data sets that are missing there.")
    parser.add_argument("--seeds", type=str, default="", help=seeds)
    parser.add_argument("--device", type=str, default=None, help="cpu, cuda ...; default: a GPU if there is one.")
    parser.add_argument("--results", type=str, default=None, help="Folder for the results (results).")
    parser.add_argument("--work", type=str, default="runs/reproduce", help="Folder for finished trainings.")
    parser.add_argument("--quick", action="store_true", help="A tiny version, to see that it works; writes to --work.")
    if experiment is None or experiment.parallel:
        number = NonNegativeFloat
        parser.add_argument(
            "--processes", type=PositiveInt, default=1, help="Trainings at a time on this machine or cluster."
        )
        parser.add_argument("--ray", type=str, default=None, help="Ray cluster: auto, an address, or local.")
        parser.add_argument("--gpus", type=number, default=0.0, help="GPUs of one training on Ray; 0.25 shares one.")
        parser.add_argument("--seconds", type=number, default=0.0, help="Time limit; the same command continues.")
    if experiment is not None and experiment.settings is not None:
        parser.add_class_arguments(experiment.settings, as_group=True)
    return parser


def options_of(experiment: Experiment, namespace: Any) -> RunOptions:
    """Turn arguments into options: where results go depends on whether they count."""
    if namespace["seeds"] and not experiment.seeded:
        raise ValueError(f"the seed of {experiment.name} is fixed; remove --seeds {namespace['seeds']}")
    seeds = numbers_of(namespace["seeds"], "seeds")
    if seeds and max(seeds) > LARGEST_SEED:
        raise ValueError(f"seeds go up to {LARGEST_SEED}, got {max(seeds)}")
    work, quick = Path(namespace["work"]), bool(namespace["quick"])
    usual = work / "quick" / "results" if quick else Path("results")
    results = usual if namespace["results"] is None else Path(namespace["results"])
    if quick:
        refuse_measured(results)
    same = results.resolve() == Path("results").resolve()
    own, shared = experiment.settings, ("processes", "ray", "gpus", "seconds") if experiment.parallel else ()
    executor = {name: namespace[name] for name in shared}
    if executor.get("gpus") and executor["ray"] is None:
        raise ValueError("--gpus shares the GPUs of a Ray cluster; add --ray, or use --processes on one machine")
    return RunOptions(
        root=None if namespace["root"] is None else Path(namespace["root"]).expanduser(),
        seeds=seeds,
        device=device_of(namespace["device"], experiment.name, experiment.on_gpu),
        results=results,
        # Figures belong to the documents only where the results do, and those of a tiny version never.
        images=Path("docs/images") if same and not quick else results / "images",
        work=work / "quick" if quick else work,
        quick=quick,
        settings=None if own is None else own(**{each.name: namespace[each.name] for each in fields(own)}),
        **executor,
    )


def device_of(asked: str | None, name: str, on_gpu: bool = True) -> str:
    """Return the device that was asked for, or a GPU if there is one and the experiment can use it."""
    import torch

    there = ["cpu"]
    if torch.cuda.is_available():
        there += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        there.append("mps")
    if not on_gpu and asked not in (None, "cpu"):
        raise ValueError(f"{name} runs on the CPU only, got --device {asked}")
    if asked is None:
        return "cuda" if on_gpu and "cuda" in there else "cpu"
    if asked not in there:
        raise ValueError(f"there is no device {asked!r} here; available: {', '.join(there)}")
    return asked


def refuse_measured(results: Path) -> None:
    """Refuse to write a tiny version among measured results."""
    for path in sorted(results.glob("*.json")):
        try:
            record = read_result(path)
        except ValueError:
            continue
        if not is_quick(record):
            raise ValueError(
                f"--quick measures nothing, and {results} holds measured results ({path.name}); remove --results, or "
                "give another folder"
            )


@contextmanager
def written_files(experiment: Experiment, options: RunOptions) -> Iterator[Callable[[], list[Path]]]:
    """Print which results and figures of an experiment are written in here, also where something fails after that.

    Yields a function that returns those that are written so far.
    """
    start = experiment.name.replace("-", "_")

    def stamps() -> dict[Path, tuple[int, int]]:
        files = [path for folder in (options.results, options.images) for path in sorted(folder.glob(f"{start}*"))]
        # A file that is only renamed keeps both.
        return {path: (each.st_ino, each.st_mtime_ns) for path in files if path.is_file() for each in [path.stat()]}

    before = {*stamps().values()}

    def written() -> list[Path]:
        return [path for path, stamp in stamps().items() if stamp not in before]

    try:
        yield written
    finally:
        if names := ", ".join(map(str, written())):
            print(f"written: {names}", flush=True)


def report_command(arguments: Sequence[str]) -> None:
    """Fill the documents, or check whether they are up to date."""
    from gspool.experiments.markers import fill_documents

    parser = TeachingParser("gspool report", REPORT, "gspool report [--check] [--plots] [--project FOLDER]")
    parser.add_argument("--check", action="store_true", help="Change nothing; fail if a document is out of date.")
    parser.add_argument("--plots", action="store_true", help="Draw the figures in docs/images again.")
    parser.add_argument("--project", type=str, default=".", help="The folder of README.md, docs/ and results/.")
    namespace = parser.parse_args(list(arguments))
    project = Path(namespace["project"])
    changed = fill_documents(project, check=namespace["check"])
    if namespace["plots"] and not namespace["check"]:
        for name in registry.names():
            draw_plots(registry.find(name), project / "results", project / "docs" / "images")
    print(f"filled: {', '.join(changed)}" if changed else "every document is up to date")
