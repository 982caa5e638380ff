"""The pages about the reproduction: every experiment with what it promises and what was measured."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from gspool.experiments import registry
from gspool.experiments.experiment import Holds, Verdict
from gspool.experiments.headline_table import headline_table
from gspool.experiments.run_status import files_there, status
from gspool.provenance import read_measured, read_result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gspool.experiments.experiment import Experiment

# What an experiment is advised to be run with that says nothing of its own and can train several at a time.
SIDE_BY_SIDE = "--device cuda --processes 10"
PAGE = Path("docs/reproduction.md")
# What stands between these in README.md is the table of the experiments.
_TABLE = re.compile(r"(<!-- reproduction -->).*?(<!-- /reproduction -->)", re.DOTALL)
INTRODUCTION = """# The paper, reproduced

<!-- Written by `gspool report` from results/*.json; edit the experiments, not this page. -->

Each section is one experiment: `gspool reproduce NAME` runs it, `gspool report` writes this page from what it measured.
The paper's values stand beside ours. What has not been run is listed as such and never estimated; what did not come out
as the paper says is said so.

**Words.** GAP, GMP and GSP: global average, global max and generalized sum pooling. ZSR: the paper's zero-shot
regularisation, of weight lambda. m prototypes, mu the part of the mass to keep, epsilon the sharpness of the selection
(small is flat). C1 and C2: contrastive loss with one margin and with two; XBM: a memory of earlier batches; PNCA:
ProxyNCA++; other losses and [layers](pooling.md) as in the paper. k-center: chooses vectors that lie far from each
other. P@1: how often the nearest image is of the same class, R@K: how often one of the K nearest is; MAP@R: mean
average precision over as many neighbours as the class has images, in percent. MPS: NVIDIA's service by which several
processes run on one GPU at the same time. Fair protocol: four folds, each holding out another quarter of the training
classes to stop by; 128D is the mean over single models, 512D joins the four of them. Seeds are repeats of the same
training.

**Seen here**, in the first table. A part of a promise is seen where its 95 % interval over pairs of runs or seeds lies
on the promised side, whatever its size; none is corrected for how many there are. *Yes*: every part is seen, and by
means of folds too where there are folds. *Partly*: some of it is seen, or only in some ways of looking: by pairs of
runs while means of folds do not tell, or by some cuts of mu. *No*: no part is seen, and what was promised is ruled out,
because an interval lies on the other side or, though it holds no effect, leaves out the paper's gain (benchmark: that
on average over losses; classification: even the smallest). *Cannot tell*: an interval holds both no effect and the
promised one, there are too few runs for one, or one corner of the screening makes an effect that its factors share.
Exceptions: collage asks for twice GAP, *no* where one loss has less, and for a *yes* also that GSP is first of its size
and near the paper; tokens asks it of more than half of the seeds, toy is not random, and computation compares times
with bounds of ours, these three without intervals.
"""


def show_list(results: Path) -> None:
    """Print every experiment with its promise, cost and status."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title="gspool reproduce NAME", title_justify="left", show_lines=True)
    # A name that is broken cannot be typed.
    shown.add_column("name", no_wrap=True)
    for column in ("shows", "promise", "cost", "status"):
        shown.add_column(column, overflow="fold")
    for name in registry.names():
        experiment = registry.find(name)
        found = status(experiment, results)
        shown.add_row(
            name,
            experiment.shows,
            experiment.promise,
            experiment.cost,
            f"done: {found.text}" if found.done else found.text,
        )
    Console().print(shown)


def page(results: Path) -> str:
    """Write the whole of docs/reproduction.md."""
    found = verdicts(results)
    sections = [
        INTRODUCTION,
        f"## What came out\n\n{overview(found)}",
        f"## What has not been run\n\n{not_run(results)}",
    ]
    for name in registry.names():
        experiment = registry.find(name)
        seen = f"Seen here: **{found[name].holds}** ([why](#what-came-out))."
        promise = f"{experiment.promise[0].upper()}{experiment.promise[1:]}, says the paper. {seen}"
        sections.append(
            f"## {heading(experiment)}\n\n{promise}\n\n{how_to_run(experiment)}\n\n{experiment.render(results).strip()}"
        )
    sections.append(f"## The main figures in one table\n\n{headline_table(results)}")
    return "\n\n".join(section.strip() for section in sections) + "\n"


def how_to_run(experiment: Experiment) -> str:
    """Write the whole command, what it needs, and what it costs.

    Example:
        >>> print(how_to_run(registry.find("toy")))
        Run: `gspool reproduce toy` (2 seconds on one CPU core).
    """
    words, needs, own = [experiment.command()], [], experiment.usual_options
    if experiment.needs:
        words.append("--root DATA")
        them = "it" if len(experiment.needs) == 1 else "them"
        data = f"{' and '.join(experiment.needs)} in the folder DATA"
        needs.append(f"{data} ([data](data.md); `--download` fetches {them})")
    options = set() if experiment.settings is None else {each.name for each in fields(experiment.settings)}
    if "weights" in options:
        words.append("--weights FILE")
        needs.append("the ImageNet weights of the backbone in FILE ([models](models.md))")
    usual = (SIDE_BY_SIDE if "processes" in options else "") if own is None else own
    words += [usual] if usual else []
    needed = f" Needs {' and '.join(needs)}." if needs else ""
    tiny = f" `{experiment.command()} --quick` shows in a minute that everything works." if needs else ""
    return f"Run: `{' '.join(words)}` ({experiment.cost}).{needed}{tiny}"


def verdicts(results: Path) -> dict[str, Verdict]:
    """Judge every experiment, which reads its results and compares all their runs."""
    return {name: verdict(registry.find(name), results) for name in registry.names()}


def overview(found: Mapping[str, Verdict]) -> str:
    """Write the table of all experiments: what the paper promises, and whether it was seen."""
    lines = ["| experiment | of the paper | what the paper promises | seen here | because |", "|---|---|---|---|---|"]
    for name, each in found.items():
        experiment = registry.find(name)
        lines.append(
            f"| [{name}](#{anchor(experiment)}) | {experiment.shows} | {experiment.promise} | {each.holds} "
            f"| {each.because} |"
        )
    return "\n".join(lines)


def promises_told(results: Path) -> str:
    """Name the experiments by whether what the paper promises was seen."""
    found: dict[str, list[str]] = {word: [] for word in get_args(Holds)}
    for name, each in verdicts(results).items():
        found[each.holds].append(name)
    told = "; ".join(f"**{word}** {', '.join(names)}" for word, names in found.items() if names)
    return f"What the paper promises, seen here: {told}."


def verdict(experiment: Experiment, results: Path) -> Verdict:
    """Say whether what the paper promises was seen; it cannot be told where results are missing."""
    if len(files_there(experiment, results)) < len(experiment.files):
        return Verdict("cannot tell", status(experiment, results).text)
    if experiment.verdict is None:
        return Verdict("cannot tell", "no verdict")
    return experiment.verdict(read_result(results / f"{experiment.files[0]}.json"))


def heading(experiment: Experiment) -> str:
    """Write the heading of an experiment's section."""
    return f"{experiment.name}: {experiment.shows}"


def anchor(experiment: Experiment) -> str:
    """Name the heading of an experiment as links to it do.

    Example:
        >>> anchor(registry.find("toy"))
        'toy-figure-2'
    """
    return re.sub(r"[^\w\- ]", "", heading(experiment).lower()).replace(" ", "-")


def not_run(results: Path) -> str:
    """List what is missing of every experiment, and what of the paper no experiment attempts."""
    lines = []
    for name in registry.names():
        experiment = registry.find(name)
        found = status(experiment, results)
        lines += [] if found.done else [f"- {name}: {found.text}."]
        lines += [f"- {name}, not attempted: {experiment.not_attempted}."] if experiment.not_attempted else []
    return "\n".join(lines) if lines else "Nothing is missing."


def write_report(project: Path, check: bool = False) -> list[str]:
    """Write the page, and the table of figures in README.md; give what changed.

    Raises:
        ValueError: if the folder has no results, or one of a tiny version among them; or, with ``check``, if something
            is out of date.
    """
    results = project / "results"
    if not results.is_dir():
        raise ValueError(f"there is no folder {results}; run this where README.md, docs/ and results/ are")
    for path in sorted(results.glob("*.json")):
        read_measured(path)
    texts = {project / PAGE: page(results)}
    readme = project / "README.md"
    if readme.is_file():
        shown = f"{promises_told(results)}\n\n{headline_table(results)}"
        texts[readme] = _TABLE.sub(lambda found: f"{found[1]}\n{shown}\n{found[2]}", readme.read_text(encoding="utf-8"))
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    named = [path.relative_to(project).as_posix() for path in stale]
    if check and stale:
        raise ValueError(f"out of date: {', '.join(named)}; run gspool report")
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
    return named
