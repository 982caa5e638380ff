"""`gspool reproduce` and `gspool report`: run a table of the paper, list what there is, write the pages."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspool.data.seeds import LARGEST_SEED
from gspool.experiments import registry
from gspool.experiments.crew import told_when_terminated
from gspool.experiments.device import device_of
from gspool.experiments.experiment import RunOptions
from gspool.experiments.folders import refuse_measured, written_told
from gspool.experiments.numbers import numbers_of
from gspool.terminal.output import check_writable
from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import WrongArgumentsError, checking_arguments, run_told

if TYPE_CHECKING:
    from gspool.experiments.experiment import Experiment

REPRODUCE = """Run one table or figure of the paper, and write what was measured to results/NAME.json.

    gspool reproduce --list                      names, costs, and what has been run
    gspool reproduce tokens
    gspool reproduce collage --root ~/data --download --device cuda
    gspool reproduce collage --quick             a tiny version, to try whether everything works

A run that was interrupted goes on where it was: finished trainings lie in the folder of --work.
`gspool reproduce NAME --help` lists what the experiment NAME offers besides."""
# Options without a value.
SWITCHES = ("--list", "--download", "--quick")
REPORT = """Write docs/reproduction.md, and the table in README.md, from the measured results.

    gspool report
    gspool report --check        change nothing; say whether they are up to date"""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run one of the commands and give its exit status."""
    commands = {"reproduce": reproduce_command, "report": report_command}
    with told_when_terminated():
        return run_told(f"gspool {command}", commands[command], arguments)


def reproduce_command(arguments: Sequence[str]) -> None:
    """Run an experiment, or list all of them.

    Raises:
        WrongArgumentsError: if no experiment is named, or it cannot be run like this.
    """
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
    print(f"{experiment.name}: {experiment.promise}\n{experiment.shows} of the paper; {experiment.cost}")
    if namespace["download"] and not options.quick:
        fetch_data(experiment, options)
    with written_told(experiment.name, options.results, options.images):
        experiment.run(options)
    if options.quick:
        print(f"a tiny version, which measures nothing; what it wrote is under {options.results}")


def list_command(words: list[str]) -> None:
    """List the experiments; without --list a name is missing, or stands behind options.

    Raises:
        WrongArgumentsError: where the list is not asked for.
    """
    late = late_name(words)
    if late is not None and not {"--list", "--help", "-h"} & {*words}:
        others = [word for place, word in enumerate(words) if place != late]
        raise WrongArgumentsError(f"put the name first: gspool reproduce {shlex.join([words[late], *others])}")
    namespace = reproduce_parser(None).parse_args(words)
    if not namespace["list"]:
        raise WrongArgumentsError(
            f"name an experiment, one of {', '.join(registry.names())}; --list says more about them"
        )
    from gspool.experiments.reproduction_report import show_list

    show_list(Path(namespace["results"] or "results"))


def late_name(words: Sequence[str]) -> int | None:
    """Find the place of an experiment's name behind options; what follows an option that takes a value is that value.

    Example:
        >>> late_name(["--device", "cpu", "tokens"]), late_name(["--root", "tokens"]), late_name(["--quick", "tokens"])
        (2, None, 1)
    """
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        if word in registry.names() and (before in SWITCHES or not before.startswith("-")):
            return place
    return None


def fetch_data(experiment: Experiment, options: RunOptions) -> None:
    """Fetch the data sets of an experiment that are not there, from their official addresses.

    Raises:
        FileNotFoundError: if a set has no address; the message says where a person gets it.
        WrongArgumentsError: if the data are somebody's own.
    """
    from gspool import data

    chosen = getattr(options.settings, "data", None)
    if chosen == "folder":
        raise WrongArgumentsError(
            "--download fetches published data sets; put your own pictures into folders under --root"
        )
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
    # The page of help that an error points to is that of the experiment, whose own options no other page lists.
    prog = "gspool reproduce" if experiment is None else f"gspool reproduce {name}"
    parser = TeachingParser(prog, about, f"gspool reproduce {name} [--OPTION VALUE ...]")
    if experiment is None:
        parser.add_argument("--list", action="store_true", help="Name the experiments, their costs and their status.")
    parser.add_argument("--root", type=str, default=None, help="The folder of the data sets ($GSPOOL_DATA).")
    parser.add_argument("--download", action="store_true", help="Fetch data sets that are not in that folder.")
    seeds = "Seeds with commas between; the promised ones if none."
    fixed = experiment is not None and not experiment.seeded
    parser.add_argument("--seeds", type=str, default="", help=f"Not for {name}: its seed is fixed." if fixed else seeds)
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
        ValueError: if the seeds are no numbers or the experiment has none to choose, the device is not there, or a tiny
            version would be written among measured results.
    """
    if namespace["seeds"] and not experiment.seeded:
        raise ValueError(f"{experiment.name} is drawn once, with a fixed seed; leave --seeds {namespace['seeds']} out")
    seeds = numbers_of(namespace["seeds"], "seeds")
    if seeds and max(seeds) > LARGEST_SEED:
        raise ValueError(f"seeds go up to {LARGEST_SEED}, got {max(seeds)}")
    work, quick = Path(namespace["work"]), bool(namespace["quick"])
    usual = work / "quick" / "results" if quick else Path("results")
    results = usual if namespace["results"] is None else Path(namespace["results"])
    if quick:
        refuse_measured(results)
    same = results.resolve() == Path("results").resolve()
    # Pictures belong to the documents only where the results do, and those of a tiny version never.
    images = Path("docs/images") if same and not quick else results / "images"
    own = experiment.settings
    return RunOptions(
        root=None if namespace["root"] is None else Path(namespace["root"]).expanduser(),
        seeds=seeds,
        device=device_of(namespace["device"], experiment.name, experiment.on_gpu),
        results=results,
        images=images,
        work=work / "quick" if quick else work,
        quick=quick,
        settings=None if own is None else own(**{each.name: namespace[each.name] for each in fields(own)}),
    )


def report_command(arguments: Sequence[str]) -> None:
    """Write the pages, or say whether they are up to date."""
    from gspool.experiments.reproduction_report import write_report

    parser = TeachingParser("gspool report", REPORT, "gspool report [--check] [--project FOLDER]")
    parser.add_argument("--check", action="store_true", help="Change nothing; fail if a page is out of date.")
    parser.add_argument("--project", type=str, default=".", help="The folder of README.md, docs/ and results/.")
    namespace = parser.parse_args(list(arguments))
    changed = write_report(Path(namespace["project"]), check=namespace["check"])
    print(f"written anew: {', '.join(changed)}" if changed else "every page is up to date")
