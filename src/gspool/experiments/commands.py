"""`gspool reproduce` and `gspool report`: run a table of the paper, list what there is, write the pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspool.experiments import registry
from gspool.experiments.experiment import RunOptions
from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import run_told

if TYPE_CHECKING:
    from gspool.experiments.experiment import Experiment

REPRODUCE = """Run one table or figure of the paper, and write what was measured to results/NAME.json.

    gspool reproduce --list                      names, costs, and what has been run
    gspool reproduce tokens
    gspool reproduce collage --root ~/data --download --device cuda
    gspool reproduce collage --quick             a tiny version, to try whether everything works

A run that was interrupted goes on where it was: finished trainings lie in the folder of --work.
`gspool reproduce NAME --help` lists what the experiment NAME offers besides."""
REPORT = """Write docs/reproduction.md, and the table in README.md, from the measured results.

    gspool report
    gspool report --check        change nothing; say whether they are up to date"""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run one of the commands and give its exit status."""
    commands = {"reproduce": reproduce_command, "report": report_command}
    return run_told(f"gspool {command}", commands[command], arguments)


def reproduce_command(arguments: Sequence[str]) -> None:
    """Run an experiment, or list all of them."""
    words = list(arguments)
    named = bool(words) and not words[0].startswith("-")
    experiment = registry.find(words[0]) if named else None
    parser = reproduce_parser(experiment)
    namespace = parser.parse_args(words[1:] if named else words)
    if experiment is None:
        if not namespace["list"]:
            raise ValueError(f"name an experiment, one of {', '.join(registry.names())}; --list says more about them")
        from gspool.experiments.reproduction_report import show_list

        show_list(Path(namespace["results"] or "results"))
        return
    options = options_of(experiment, namespace)
    print(f"{experiment.name}: {experiment.promise}\n{experiment.shows} of the paper; {experiment.cost}")
    if namespace["download"] and not options.quick:
        fetch_data(experiment, options)
    experiment.run(options)
    if options.quick:
        print(f"a tiny version, which measures nothing; what it wrote is under {options.results}")


def fetch_data(experiment: Experiment, options: RunOptions) -> None:
    """Fetch the data sets of an experiment that are not there, from their official addresses.

    Raises:
        FileNotFoundError: if a set has no address; the message says where a person gets it.
        ValueError: if the data are somebody's own.
    """
    from gspool import data

    chosen = getattr(options.settings, "data", None)
    if chosen == "folder":
        raise ValueError("--download fetches published data sets; put your own pictures into folders under --root")
    for name in experiment.needs if chosen is None else (chosen,):
        data.create(name, options.root, "train", download=True)


def reproduce_parser(experiment: Experiment | None) -> TeachingParser:
    """Make the parser of one experiment with its own settings, or of the command without one."""
    name = "NAME" if experiment is None else experiment.name
    about = (
        REPRODUCE
        if experiment is None
        else f"{experiment.promise}: {experiment.shows} of the paper.\n{experiment.cost}"
    )
    parser = TeachingParser("gspool reproduce", about, f"gspool reproduce {name} [--OPTION VALUE ...]")
    if experiment is None:
        parser.add_argument("--list", action="store_true", help="Name the experiments, their costs and their status.")
    parser.add_argument("--root", type=str, default=None, help="The folder of the data sets ($GSPOOL_DATA).")
    parser.add_argument("--download", action="store_true", help="Fetch data sets that are not in that folder.")
    parser.add_argument("--seeds", type=str, default="", help="Seeds with commas between; the promised ones if none.")
    parser.add_argument("--device", type=str, default=None, help="cpu, cuda ...; a GPU where there is one.")
    parser.add_argument("--results", type=str, default=None, help="The folder for what was measured (results).")
    parser.add_argument("--work", type=str, default="runs/reproduce", help="The folder for finished trainings.")
    parser.add_argument("--quick", action="store_true", help="A tiny version; writes to the folder of --work.")
    if experiment is not None and experiment.settings is not None:
        parser.add_class_arguments(experiment.settings, as_group=True)
    return parser


def options_of(experiment: Experiment, namespace: Any) -> RunOptions:
    """Turn arguments into options: where results go depends on whether they count.

    Raises:
        ValueError: if the seeds are not numbers.
    """
    import torch

    work, quick = Path(namespace["work"]), bool(namespace["quick"])
    usual = work / "quick" / "results" if quick else Path("results")
    results = usual if namespace["results"] is None else Path(namespace["results"])
    # Pictures belong to the documents only where the results do.
    images = Path("docs/images") if results == Path("results") else results / "images"
    own = experiment.settings
    return RunOptions(
        root=None if namespace["root"] is None else Path(namespace["root"]).expanduser(),
        seeds=_numbers(namespace["seeds"]),
        device=namespace["device"] or ("cuda" if torch.cuda.is_available() else "cpu"),
        results=results,
        images=images,
        work=work / "quick" if quick else work,
        quick=quick,
        settings=None if own is None else own(**{each.name: namespace[each.name] for each in fields(own)}),
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",")) if text else ()
    except ValueError as wrong:
        raise ValueError(f"seeds are whole numbers with commas between, such as 0,1,2, got {text!r}") from wrong


def report_command(arguments: Sequence[str]) -> None:
    """Write the pages, or say whether they are up to date."""
    from gspool.experiments.reproduction_report import write_report

    parser = TeachingParser("gspool report", REPORT, "gspool report [--check] [--project FOLDER]")
    parser.add_argument("--check", action="store_true", help="Change nothing; fail if a page is out of date.")
    parser.add_argument("--project", type=str, default=".", help="The folder of README.md, docs/ and results/.")
    namespace = parser.parse_args(list(arguments))
    changed = write_report(Path(namespace["project"]), check=namespace["check"])
    print(f"written anew: {', '.join(changed)}" if changed else "every page is up to date")
