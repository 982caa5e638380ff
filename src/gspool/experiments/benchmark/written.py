"""The result of a benchmark: what it holds already is taken over, and the figures of all trainings are written anew."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspool.evaluation import PROTOCOLS
from gspool.experiments.benchmark.figures import study_figures
from gspool.experiments.benchmark.store import runs_of
from gspool.experiments.benchmark.taken_over import take_over_figures
from gspool.experiments.earlier_result import earlier_result, set_aside
from gspool.provenance import write_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gspool.experiments.benchmark.runs import Study
    from gspool.experiments.benchmark.stand_in import Ground
    from gspool.experiments.benchmark.store import Store


def ground_named(study: Study) -> dict[str, str]:
    """Name what all trainings of a result share."""
    return {"data": study.data, "protocol": study.protocol, "backbone": study.backbone}


def take_over(path: Path, study: Study, store: Store, quick: bool) -> None:
    """Let a store know the trainings of the result that is there, and what they cannot tell again.

    A result that is damaged, or of a tiny version where this is none, is set aside: the store's own trainings remain.

    Raises:
        ValueError: if the result is of another data set, protocol or backbone.
    """
    record = earlier_result(path, quick)
    if record is None:
        return
    value, ground = record.get("value"), ground_named(study)
    if not isinstance(value, dict) or not {"arms", "runs", *ground} <= set(value):
        set_aside(path, "damaged", f"{path.name} holds no trainings")
        return
    store.adopt(record, ground)
    take_over_figures(store, value, PROTOCOLS[study.protocol].folds)


@contextmanager
def written_at_the_end(write: Callable[[], None]) -> Iterator[None]:
    """Write figures after trainings, also where one of them broke: what is done counts.

    Not after Ctrl-C or SIGTERM, when nobody wants to wait for minutes: the same command writes them later.

    Example:
        >>> with written_at_the_end(lambda: print("figures")):
        ...     print("trainings")
        trainings
        figures
    """
    try:
        yield
    except Exception:
        write()
        raise
    write()


def write_figures(
    path: Path,
    study: Study,
    store: Store,
    ground: Ground,
    command: str,
    trained: bool,
    wanted: Sequence[str] | None = None,
) -> None:
    """Write the figures of a store's trainings, with the provenances of the trainings.

    Args:
        path: the result; a note that stands in it stays.
        study: what the trainings are of.
        store: the trainings.
        ground: the images, for their labels.
        command: what a person typed.
        trained: whether this call was to train; if not, the command that stands in the result stays as well.
        wanted: names of arms; None takes all that the store holds.
    """
    before = earlier_result(path, quick=True) or {}
    known = runs_of(before["value"]) if before else []
    value = {**ground_named(study), **study_figures(store, PROTOCOLS[study.protocol], ground, wanted, known)}
    write_result(
        path,
        value,
        command=command if trained else before.get("command", command),
        seeds=sorted({run["asked"]["seed"] for run in value["runs"]}),
        origins=[run["found"]["origin"] for run in value["runs"]],
        note=before.get("note"),
    )
    for line in left_out(before.get("value", {"arms": []}), value):
        print(f"{line}: their trainings changed, and not all embeddings are in {store.folder}", flush=True)


def left_out(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Name the arms whose joined models had figures, or figures of more repeats, that have to be left out.

    Example:
        >>> three = {"arms": [{"arm": "c2 gsp", "joined": {"repeats": 3}}, {"arm": "c2 gap", "joined": None}]}
        >>> left_out(three, {"arms": [{"arm": "c2 gsp", "joined": {"repeats": 1}}, {"arm": "c2 gap", "joined": None}]})
        ['c2 gsp: 512D figures of 3 repeats are left out, and 1 remains']
        >>> left_out(three, three)
        []
    """
    now = {arm["arm"]: (arm["joined"] or {"repeats": 0})["repeats"] for arm in after["arms"]}
    lines = []
    for arm in before["arms"]:
        had, left = (arm["joined"] or {"repeats": 0})["repeats"], now.get(arm["arm"], 0)
        if left < had:
            remains = f", and {left} remain{'s' * (left == 1)}" if left else ""
            lines.append(f"{arm['arm']}: 512D figures of {had} repeat{'s' * (had > 1)} are left out{remains}")
    return lines
