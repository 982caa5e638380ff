"""Settings of GSP tried beyond the paper's, and which of them the validation classes choose.

Settings are compared by their difference from GAP on the *validation* classes of the same fold and seed, over the folds
and seeds in which all of them were trained. Test classes take no part in the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from gspool.executor.run_store import Run
from gspool.experiments.retrieval_figures import place
from gspool.experiments.retrieval_variants import Variant

# Steps of 1e-5 leave what takes part in the transport where it began: a thousand of them move a prototype, or the
# logarithm of epsilon, by at most 0.01.
FAST = {"optimiser.multipliers": {"prototypes": 100.0}}
FAST_AND_LEARNED = {"optimiser.multipliers": {"prototypes": 100.0, "mu_logit": 100.0, "log_epsilon": 100.0}}
WITHOUT_ZSR = {"loss.zsr": 0.0}


def search_variants(losses: Sequence[str] = ("c2", "pnca")) -> list[Variant]:
    """List what is tried to make GSP select.

    At the paper's epsilon the weights are almost flat and other changes can hardly show, so most settings change one
    thing around epsilon 20. The paper's values are 64 prototypes, mu 0.3 and lambda 0.1; the reference multiplies the
    logits of the regularisation by 9.5, the paper prints no factor. `screening` varies epsilon, mu, lambda and the
    number of prototypes on validation classes; its best point with ProxyNCA++ is here, with C2 none was ahead of GAP.
    """
    return [variant for loss in losses for variant in _search_variants(loss)]


def _search_variants(loss: str) -> list[Variant]:
    learned = {"epsilon": 20.0, "learn_mu": True, "learn_epsilon": True}
    return [
        _sharp(loss, ""),
        Variant(loss, "gsp", "learned", learned, FAST_AND_LEARNED),
        _sharp(loss, ", mu 0.7, 16 prototypes", {"mu": 0.7, "prototypes": 16}),
        Variant(loss, "gsp", "epsilon 50", {"epsilon": 50.0}),
        _sharp(loss, ", fast", changes=FAST),
        _sharp(loss, ", tokens", {"warm_start": 0}, FAST, tokens=64),
        Variant(loss, "gsp", "without zsr", changes=WITHOUT_ZSR),
        _sharp(loss, ", without zsr", changes=WITHOUT_ZSR),
        _sharp(loss, ", zsr scale 1", changes={"loss.zsr_options": {"scale": 1.0}}),
        _sharp(loss, ", embedded after", {"embedding": "after"}),
        _sharp(loss, ", warm-up 3", changes={"schedule.warmup_epochs": 3.0}),
    ]


def _sharp(
    loss: str,
    what: str,
    options: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    tokens: int = 0,
) -> Variant:
    return Variant(loss, "gsp", f"epsilon 20{what}", {"epsilon": 20.0, **(options or {})}, changes or {}, tokens)


class Choice(NamedTuple):
    """The setting that is furthest ahead of GAP on validation classes, of ``among`` settings that were tried.

    ``places`` are the folds and seeds in which all of them have been trained beside GAP.
    """

    variant: Variant
    places: tuple[tuple[int, int], ...]
    among: int


def chosen_by_validation(runs: Mapping[str, Sequence[Run]], loss: str) -> Choice | None:
    """Compare the settings that were tried with a loss where all of them were trained; None where there is no place.

    Folds and seeds differ by more than settings do: of a setting that was repeated more often than others, only the
    runs count that have a partner in every other setting.
    """
    reached = {name: {place(run): run.found["validation"] for run in own} for name, own in runs.items()}
    tried = [variant for variant in search_variants((loss,)) if variant.name in reached]
    gap = reached.get(f"{loss} gap", {})
    places = sorted(set(gap).intersection(*(reached[variant.name] for variant in tried))) if tried else []
    if not places:
        return None
    best = max(tried, key=lambda variant: fmean(reached[variant.name][each] - gap[each] for each in places))
    return Choice(best, tuple(places), len(tried))


def best_variants(losses: Sequence[str], runs: Mapping[str, Sequence[Run]]) -> list[Variant]:
    """Return for every loss the setting that validation chooses."""
    chosen = []
    for loss in losses:
        choice = chosen_by_validation(runs, loss)
        if choice is None:
            raise ValueError(
                f"--variants best: no fold and seed has GAP and every tried setting of {loss}; train them first, for "
                f'example with --variants "paper;search" --losses {loss} --seeds 0'
            )
        chosen.append(choice.variant)
    return chosen
