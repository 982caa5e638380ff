"""Finished trainings of a benchmark: figures in a ledger, embeddings beside it."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gspool.evaluation import RunResult
from gspool.experiments.ledger import Ledger
from gspool.provenance import origin_of

if TYPE_CHECKING:
    import torch

    from gspool.experiments.resident import Job, Outcome

EMBEDDINGS = "embeddings"
# Wider embeddings (8,192 numbers of VLAD and OTP) are not kept: no table joins them, and a training's take 100 MB.
WIDEST = 512


class Run(NamedTuple):
    """One finished training: what was asked for, and what it found."""

    asked: dict[str, Any]
    found: dict[str, Any]

    @property
    def place(self) -> tuple[int, int]:
        """Give its fold and seed; runs of several arms in one place are pairs."""
        return self.asked["fold"], self.asked["seed"]


def runs_by_arm(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs by the names of their arms, both in the order in which they come.

    Example:
        >>> runs = [Run({"arm": arm, "seed": seed}, {}) for seed, arm in enumerate(("c2 gap", "c2 gsp", "c2 gap"))]
        >>> {arm: [run.asked["seed"] for run in own] for arm, own in runs_by_arm(runs).items()}
        {'c2 gap': [0, 2], 'c2 gsp': [1]}
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.asked["arm"], []).append(run)
    return found


def runs_of(value: Mapping[str, Any]) -> list[Run]:
    """Give the trainings of a result."""
    return [Run(each["asked"], each["found"]) for each in value["runs"]]


def ended(runs: Sequence[Mapping[str, Any]]) -> set[tuple[str, int, int]]:
    """Give arm, fold and seed of the runs of a result that time did not cut short.

    Example:
        >>> asked = {"arm": "c2 gap", "fold": 0, "seed": 1}
        >>> ended([{"asked": asked, "found": {"ending": word}} for word in ("patience", "time")])
        {('c2 gap', 0, 1)}
    """
    asked = [run["asked"] for run in runs if run["found"]["ending"] != "time"]
    return {(each["arm"], each["fold"], each["seed"]) for each in asked}


def missing_of(
    names: Iterable[str], folds: Iterable[int], seeds: Iterable[int], runs: Sequence[Mapping[str, Any]]
) -> tuple[int, int]:
    """Count the trainings of arms that the runs of a result do not hold to their end, and all that are wanted.

    Example:
        >>> asked = {"arm": "c2 gap", "fold": 0, "seed": 1}
        >>> missing_of(["c2 gap"], range(4), [1], [{"asked": asked, "found": {"ending": "patience"}}])
        (3, 4)
    """
    wanted = set(itertools.product(names, folds, seeds))
    return len(wanted - ended(runs)), len(wanted)


class Store:
    """Finished trainings of one folder: figures and those of joined models in ledgers, embeddings beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = Ledger(folder / "runs.jsonl")
        self.joined = Ledger(folder / "joined.jsonl")

    def runs(self) -> list[Run]:
        """Give every finished training; where one was made with several settings, the last that early stopping ended.

        One that its number of steps ended comes after those, and one that time cut short last, that of most steps.
        """
        best: dict[tuple[str, int, int], Run] = {}
        for entry in self.ledger.entries.items():
            run = Run(json.loads(entry[0]), entry[1])
            key = (run.asked["arm"], *run.place)
            if key not in best or _rank(run) >= _rank(best[key]):
                best[key] = run
        return [*best.values()]

    def adopt(self, record: Mapping[str, Any], ground: Mapping[str, str]) -> None:
        """Take over the trainings that a result holds, without their embeddings, so that they are not made again.

        Raises:
            ValueError: if the result is of another data set, protocol or backbone than ``ground`` names.
        """
        value = record["value"]
        other = [f"{name} {value[name]}" for name in ground if value[name] != ground[name]]
        if other:
            raise ValueError(
                f"the result that is there is of {', '.join(other)}, and these trainings are of "
                f"{', '.join(f'{name} {word}' for name, word in ground.items())}: give another folder with --results"
            )
        for run in value["runs"]:
            if self.ledger.get(run["asked"]) is None:
                # Behind the others, where a training puts it: figures that are written anew do not change their order.
                self.ledger.put(run["asked"], {**run["found"], "origin": run["found"].get("origin", origin_of(record))})

    def get(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Give what a training found, or None where it has not been made."""
        return self.ledger.get(asked)

    def share(self, asked: dict[str, Any]) -> None:
        """Take a training that was made under another name with the same settings for this one, with its embeddings.

        Studies name what they vary: mu 0.3 of one is m 64, epsilon 5 of another, and the paper's setting of a third.
        """
        done = self.get(asked)
        if done is not None and done["ending"] != "time":
            return
        same = ("settings", "fold", "seed")
        for entry in list(self.ledger.entries.items()):
            twin = Run(json.loads(entry[0]), entry[1])
            if all(twin.asked[name] == asked[name] for name in same) and twin.found["ending"] != "time":
                if self.path(twin.asked).is_file():
                    shutil.copyfile(self.path(twin.asked), self.path(asked))
                self.ledger.put(asked, twin.found)
                return

    def put(self, job: Job, outcome: Outcome, origin: Mapping[str, Any]) -> None:
        """Keep a training and where it comes from: embeddings first, the line that counts last."""
        if outcome.embeddings.shape[1] <= WIDEST:
            self._keep_embeddings(job, outcome)
        self.ledger.put(job.asked, {**outcome.record(), "origin": dict(origin)})

    def _keep_embeddings(self, job: Job, outcome: Outcome) -> None:
        from safetensors.torch import save_file

        tensors = {EMBEDDINGS: outcome.embeddings.half().contiguous()}
        if outcome.gallery is not None:
            tensors["gallery"] = outcome.gallery.half().contiguous()
        self.folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, self.path(job.asked))

    def result(self, run: Run, device: torch.device | str = "cpu") -> RunResult | None:
        """Give a training as the protocols of `gspool.evaluation` average it; None without its embeddings."""
        from safetensors.torch import load_file

        path = self.path(run.asked)
        if not path.is_file():
            return None
        tensors = load_file(path, str(device))
        gallery = tensors.get("gallery")
        return RunResult(
            tensors[EMBEDDINGS].float(), run.found["metrics"], None if gallery is None else gallery.float()
        )

    def name_of_weights(self, path: Path) -> str:
        """Name a file of weights by what is in it: the name under which these bytes were first trained from here.

        A copy under another name is the same, and another file under the same name is not.
        """
        known = Ledger(self.folder / "weights.jsonl")
        with path.open("rb") as file:
            content = {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        name = known.get(content)
        if name is None:
            taken = path.name in known.entries.values()
            name = f"{path.name} {content['sha256'][:8]}" if taken else path.name
            known.put(content, name)
        return str(name)

    def path(self, asked: dict[str, Any]) -> Path:
        """Name the file of the embeddings of a training."""
        return self.folder / f"{_file_name(asked)}.safetensors"

    def unfinished(self, asked: dict[str, Any]) -> Path:
        """Name the file of the state of a training that time cut short."""
        return self.folder / "unfinished" / f"{_file_name(asked)}.pt"


def _rank(run: Run) -> tuple[int, int]:
    ending = run.found["ending"]
    return ("time", "max_steps", "patience").index(ending), run.found["steps"] if ending == "time" else 0


def _file_name(asked: dict[str, Any]) -> str:
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
    words = f"{asked['arm']} fold{asked['fold']} seed{asked['seed']} {key}"
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in words)
