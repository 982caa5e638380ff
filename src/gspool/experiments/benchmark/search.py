"""The settings tried beyond the paper's.

    gspool reproduce benchmark --arms search --seeds 0                    # every setting on every fold, once
    gspool reproduce benchmark --arms search --variants best              # the best of them with every seed

Settings are compared by how far they are ahead of GAP on the *validation* classes of the same fold and seed, over the
folds and seeds in which all of them were trained (`gspool.experiments.benchmark.choice`); test classes have no say in
it. ``--variants best`` takes for every loss the setting that is furthest ahead. What was trained before is not trained
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gspool.experiments.benchmark.arms import Arm
from gspool.experiments.numbers import refuse_twice

# Of what takes part in the transport, the steps of 1e-5 leave it where it began: a thousand of them move a prototype,
# or the logarithm of epsilon, by at most 0.01.
FAST = {"prototypes": 100.0}
FAST_AND_LEARNED = {**FAST, "mu_logit": 100.0, "log_epsilon": 100.0}
LEARNED = {"learn_mu": True, "learn_epsilon": True}
BEST = "best"


def search_arms(losses: tuple[str, ...] = ("c2", "pnca")) -> list[Arm]:
    """List what is tried to make GSP select; each changes what its name says.

    At the paper's epsilon the weights are all but flat, and what else is changed can hardly show: most of the settings
    change one thing around epsilon 20. The paper's values are 64 prototypes, mu 0.3 and lambda 0.1; the logits of the
    regularisation are times 9.5 in the reference, while the paper shows no factor; warm-up is one epoch for losses with
    proxies and none for others. Epsilon, mu, lambda and the number of prototypes were varied on validation classes by
    `screening` already, eight corners and a grid for both losses: of those, the best corner is here, that of
    ProxyNCA++; with C2 none was ahead of average pooling.
    """
    return [arm for loss in losses for arm in _search_of(loss)]


def _search_of(loss: str) -> list[Arm]:
    def sharp(what: str, options: Mapping[str, Any] | None = None, **more: Any) -> Arm:
        return Arm(loss, "gsp", f"epsilon 20{what}", {"epsilon": 20.0, **(options or {})}, **more)

    return [
        sharp(""),
        Arm(loss, "gsp", "learned", {"epsilon": 20.0, **LEARNED}, FAST_AND_LEARNED),
        sharp(", mu 0.7, 16 prototypes", {"mu": 0.7, "prototypes": 16}),
        Arm(loss, "gsp", "epsilon 50", {"epsilon": 50.0}),
        sharp(", fast", multipliers=FAST),
        sharp(", tokens", {"warm_start": 0}, multipliers=FAST, token_start=64),
        Arm(loss, "gsp", "without zsr", zsr=0.0),
        sharp(", without zsr", zsr=0.0),
        sharp(", zsr scale 1", changes={"loss__zsr_options": {"scale": 1.0}}),
        sharp(", embedded after", {"embedding": "after"}),
        sharp(", warm-up 3", changes={"schedule__warmup_epochs": 3.0}),
    ]


def named_variants(text: str) -> list[str]:
    """Read names of settings with semicolons between; none are all.

    Raises:
        ValueError: if the search has no setting of a name, or one is named twice.

    Example:
        >>> named_variants("epsilon 50; learned")
        ['epsilon 50', 'learned']
    """
    known = [arm.variant for arm in search_arms(("c2",))]
    words = [word.strip() for word in text.split(";")] if text else known
    unknown = [word for word in words if word not in known]
    if unknown:
        raise ValueError(
            f"the search has no setting {'; '.join(unknown)!r}; its settings are {'; '.join(known)}, or {BEST} alone"
        )
    refuse_twice(words, "variants", text)
    return words
