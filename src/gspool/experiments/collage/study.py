"""The collage study under way: what is trained on, what is finished, how much time is left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from gspool.experiments.cifar_pretraining import PretrainingSettings
from gspool.experiments.cifar_stand_in import write_cifar100_stand_in
from gspool.experiments.collage.backbones import FLAVOURS, pretrain_missing, read_backbone
from gspool.experiments.collage.crew import train_missing
from gspool.experiments.collage.maps import collage_maps, distilled_maps, stitched_tiles
from gspool.experiments.collage.search import AS_THE_PAPER, LOSSES, TOGETHER, combined, search_trainings
from gspool.experiments.collage.training import Ground, Training
from gspool.experiments.experiment import RunOptions
from gspool.experiments.ledger import Ledger

SEEDS = (0, 1, 2)
SEARCH_SEED = 0


@dataclass(frozen=True)
class CollageSettings:
    """Options of the collage study.

    Args:
        processes: trainings at a time; on a large GPU 14.
        backend: how GSP is computed: "torch", or "triton" on a GPU; see gspool.functional.gsp_pool.
        epochs: passes over the collages at most.
        patience: passes without a better validation before a training stops.
        fine_tuned_epochs: passes at most where the backbone learns too.
        captured: whether a GPU replays steps from a CUDA graph.
        seconds: after this long no other training begins; tables hold what is finished. 0 sets no end.
    """

    processes: int = 1
    backend: str = "torch"
    epochs: int = 30
    patience: int = 10
    fine_tuned_epochs: int = 10
    captured: bool = True
    seconds: float = 0.0


class Searched(NamedTuple):
    """Figures of every variant by (pooling, loss, variant), and the best of each pair by validation."""

    found: dict[tuple[str, str, str], dict[str, Any]]
    best: dict[tuple[str, str], tuple[str, Training]]


class Study:
    """What the tables have in common: options, data, finished trainings, the clock."""

    def __init__(self, options: RunOptions) -> None:
        given = options.settings if options.settings is not None else CollageSettings()
        self.options = options
        self.settings = replace(given, epochs=1, patience=1, fine_tuned_epochs=1) if options.quick else given
        self.seeds = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
        self.folder = options.work / "collage"
        self.ledger = Ledger(self.folder / "trainings.jsonl")
        self.started = time.monotonic()
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

    def train(self, what: str, trainings: Mapping[Any, Training]) -> dict[Any, dict[str, Any]]:
        """Make what is missing while there is time, and give what is finished by the same keys."""
        missing = [training for training in trainings.values() if self.ledger.get(training.asked()) is None]
        self.say(f"{what}: {len(trainings)} trainings, {len(missing)} of them to be made")
        if missing and not self.time_is_up:
            settings, ground = self.settings, self.ground
            left = settings.seconds - (time.monotonic() - self.started) if settings.seconds else None
            train_missing(missing, ground, self.options.device, self.ledger, settings.processes, self.say, left)
        found = {key: self.ledger.get(training.asked()) for key, training in trainings.items()}
        return {key: each for key, each in found.items() if each is not None}

    def search(self) -> Searched:
        """Try the variants for GAP and GSP on validation classes, then what helped together."""
        pairs = [(pooling, loss) for pooling in ("gap", "gsp") for loss in LOSSES]
        trainings = {
            (*pair, name): training
            for pair in pairs
            for name, training in search_trainings(*pair, SEARCH_SEED, **self.usual).items()
            if not self.options.quick or name in (AS_THE_PAPER, "lr 1e-2")
        }
        found = self.train("search", trainings)
        reached = {pair: _validation(found, pair) for pair in pairs}
        joined = {
            (*pair, TOGETHER): training
            for pair in pairs
            if AS_THE_PAPER in reached[pair]
            and (training := combined(*pair, reached[pair], SEARCH_SEED, **self.usual)) is not None
        }
        found |= self.train(TOGETHER, joined)
        trainings |= joined
        best = {}
        for pair in pairs:
            own = _validation(found, pair)
            if own:
                name = max(own, key=lambda each: own[each])
                best[pair] = (name, trainings[*pair, name])
        return Searched(found, best)


def _validation(found: Mapping[tuple[str, str, str], Mapping[str, Any]], pair: tuple[str, str]) -> dict[str, float]:
    return {key[2]: each["validation"] for key, each in found.items() if key[:2] == pair}
