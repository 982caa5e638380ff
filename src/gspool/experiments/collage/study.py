"""The collage study under way: what is trained on, what is finished, how much time is left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gspool.experiments.cifar_pretraining import PretrainingSettings
from gspool.experiments.cifar_stand_in import write_cifar100_stand_in
from gspool.experiments.collage.backbones import FLAVOURS, pretrain_missing, read_backbone
from gspool.experiments.collage.crew import TrainingsBrokenError, gather_crew, train_missing
from gspool.experiments.collage.maps import collage_maps, distilled_maps, stitched_tiles
from gspool.experiments.collage.recipe import Training
from gspool.experiments.collage.training import Ground
from gspool.experiments.crew import Crew, CrewDiedError
from gspool.experiments.experiment import RunOptions
from gspool.experiments.ledger import Ledger
from gspool.provenance import origin_here

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class CollageSettings:
    """Options of the collage study.

    Args:
        processes: trainings at a time; on a large GPU 14, which then shares itself best under NVIDIA's MPS.
        backend: how GSP is computed: "torch", or "triton" on a GPU; see gspool.functional.gsp_pool.
        epochs: passes over the collages at most; `Training` says why no more.
        patience: passes without a better validation before a training stops.
        fine_tuned_epochs: passes at most where the backbone learns too.
        captured: whether a GPU replays steps from a CUDA graph.
        seconds: after this long no other training begins; tables hold what is finished. 0 sets no end.
    """

    processes: int = 1
    backend: str = "torch"
    epochs: int = 15
    patience: int = 6
    fine_tuned_epochs: int = 8
    captured: bool = True
    seconds: float = 0.0


class Study:
    """What the tables have in common: options, data, finished trainings, the clock."""

    def __init__(self, options: RunOptions) -> None:
        given = options.settings if options.settings is not None else CollageSettings()
        self.options = options
        self.settings = replace(given, epochs=1, patience=1, fine_tuned_epochs=1) if options.quick else given
        self.seeds = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
        self.folder = options.work / "collage"
        self.here = origin_here(options.device, ["pytorch-metric-learning"])
        self.ledger = Ledger(self.folder / "trainings.jsonl", self.here)
        self.started = time.monotonic()
        self.broken: list[str] = []
        self.root = write_cifar100_stand_in(options.work / "stand-in", 1, 1) if options.quick else options.root
        self.usual: dict[str, Any] = {"epochs": self.settings.epochs, "patience": self.settings.patience}

    def say(self, line: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"[{time.monotonic() - self.started:6.1f} s] {line}", flush=True)

    @property
    def time_is_up(self) -> bool:
        """Whether nothing more may begin."""
        return bool(self.settings.seconds) and time.monotonic() - self.started > self.settings.seconds

    @cached_property
    def backbones(self) -> list[dict[str, Any]]:
        """What is known about the backbones, which are trained if they are not there."""
        tiny = PretrainingSettings(epochs=1, batch_size=64, lr=0.1) if self.options.quick else None
        return pretrain_missing(FLAVOURS, self.root, self.folder, self.options.device, tiny)

    @cached_property
    def ground(self) -> Ground:
        """Tiles, and the maps of both flavours; made when the first training asks for them."""
        known = ", ".join(f"{each['flavour']} {each['accuracy']:.1%}" for each in self.backbones)
        self.say(f"backbones, right on CIFAR-100: {known}")
        device = self.options.device
        collages = stitched_tiles(self.root, device)
        maps, weights = {}, {}
        for flavour in FLAVOURS:
            backbone = read_backbone(self.folder, flavour, device)
            maps["collage", str(flavour)] = collage_maps(backbone, collages)
            weights[str(flavour)] = {name: value.clone() for name, value in backbone.state_dict().items()}
            if flavour == FLAVOURS[0]:
                maps["distilled", str(flavour)] = distilled_maps(backbone, self.root, device)
        self.say("the maps of all collages are there")
        return Ground(maps, collages, weights, self.settings.backend, self.settings.captured)

    @cached_property
    def crew(self) -> Crew | None:
        """The processes that train side by side; None where one does it all."""
        if self.settings.processes <= 1:
            return None
        return gather_crew(self.ground, self.options.device, self.settings.processes)

    def dismiss(self) -> None:
        """Let the crew go, if there is one."""
        crew = self.__dict__.pop("crew", None)
        if crew is not None:
            crew.dismiss()

    def train(self, what: str, trainings: Mapping[Any, Training]) -> dict[Any, dict[str, Any]]:
        """Make what is missing while there is time, and give what is finished by the same keys.

        What broke is remembered in ``broken``: all that did not is written down before anybody is told.
        """
        missing = [training for training in trainings.values() if self.ledger.get(training.asked()) is None]
        self.say(f"{what}: {len(trainings)} trainings, {len(missing)} of them to be made")
        if missing and not self.time_is_up:
            settings, ground, crew = self.settings, self.ground, self.crew
            left = settings.seconds - (time.monotonic() - self.started) if settings.seconds else None
            try:
                train_missing(missing, ground, self.options.device, self.ledger, crew, self.say, left)
            except (TrainingsBrokenError, CrewDiedError) as wrong:
                self.broken.append(f"{what}: {wrong}")
                # Where a process died, the others have been sent home; a new crew makes the rest.
                self.dismiss()
        return self.finished(trainings)

    def finished(self, trainings: Mapping[Any, Training]) -> dict[Any, dict[str, Any]]:
        """Give what is finished, by the same keys."""
        found = {key: self.ledger.get(training.asked()) for key, training in trainings.items()}
        return {key: each for key, each in found.items() if each is not None}
