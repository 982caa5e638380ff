"""Pooling layers by name."""

from __future__ import annotations

import pytest

from gspool.pooling import registry

PAPER = "gap gmp gap+gmp gemean gemax cbam crow delf gsop otp solar tsmk vlad weldon tfm gsp gmp+gsp gemean+gsp"
TIMM = "avgmax catavgmax attention simpool lse"
PROBING = "ep abmilp map clip aim"


def test_lists_every_layer_of_the_paper_and_of_timm() -> None:
    assert registry.list() == f"{PAPER} {TIMM} {PROBING}".split()
    registry.list().clear()
    assert "gap" in registry.list()


def test_layers_print_what_decides_the_result() -> None:
    shown = {name: repr(registry.create(name, dim=16)) for name in registry.list()}
    assert all("16" in text for text in shown.values())
    assert "p=3 (shared), learn_p=True" in shown["gemean"]
    assert "per channel" in repr(registry.create("gemean", dim=16, per_channel=True))
    assert "ridge=1" in shown["gemax"]
    assert "hidden=512" in shown["delf"]
    assert "16, prototypes=64, mu=0.3, epsilon=5" in shown["gsp"]
    assert "mu=0.5 (learned)" in repr(registry.create("gsp", dim=16, mu=0.5, learn_mu=True))
    assert "role=background" in repr(registry.create("gsp", dim=16, role="background"))
    assert "k=3, k_min=3" in shown["weldon"]
    assert "16 -> 4, kernel_size=5" in repr(registry.create("tsmk", dim=16, out_dim=4, kernel_size=5))


GSP_SETTINGS = {"prototypes": 64, "mu": 0.3, "epsilon": 5.0, "learn_mu": False, "role": "foreground"}


@pytest.mark.parametrize(
    ("name", "place", "settings"),
    [
        ("gap", "after", {}),
        ("gemean", "after", {"p": 3.0, "learn_p": True, "per_channel": False, "minimum": 1e-6}),
        ("gemax", "after", {"ridge": 1.0}),
        ("cbam", "after", {"reduction": 1, "kernel_size": 3}),
        ("delf", "after", {"hidden": 512, "normalize": False}),
        ("gsop", "before", {"attention_dim": 128, "grid": 8}),
        ("otp", "inside", {"out_dim": None, "prototypes": 8}),
        ("solar", "after", {"reduction": 1, "p": 3.0, "learn_p": True}),
        ("tsmk", "inside", {"out_dim": None, "kernel_size": 3}),
        ("vlad", "inside", {"out_dim": None, "prototypes": 8}),
        ("weldon", "before", {"k": 3, "k_min": None}),
        ("tfm", "before", {"layers": 1, "position": "none"}),
        ("gsp", "before", GSP_SETTINGS),
        ("gmp+gsp", "inside", GSP_SETTINGS),
        ("gemean+gsp", "inside", GSP_SETTINGS),
    ],
)
def test_the_papers_settings_are_the_defaults(name: str, place: str, settings: dict[str, object]) -> None:
    assert registry.options(name).items() >= settings.items()
    assert registry.layer_class(name).embedding == place


def test_options_reach_the_layer() -> None:
    layer = registry.create("weldon", dim=4, k=2, k_min=1)
    assert (layer.k, layer.k_min) == (2, 1)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("gemeen", "gemean"), ("GAP", "gap"), ("GMP+GAP", "gap+gmp"), ("gsp+gmp", "gmp+gsp"), ("cat-avgmax", "catavgmax")],
)
def test_a_wrong_name_is_refused_with_the_right_one(wrong: str, right: str) -> None:
    with pytest.raises(ValueError, match="no pooling layer") as refusal:
        registry.create(wrong, dim=4)
    assert f"Did you mean {right!r}" in str(refusal.value)
    assert all(name in str(refusal.value) for name in registry.list())


@pytest.mark.parametrize("name", ["", None, 3, "quite something else"])
def test_a_name_like_none_is_refused_without_a_guess(name: object) -> None:
    with pytest.raises(ValueError, match="no pooling layer") as refusal:
        registry.create(name, dim=4)  # type: ignore[arg-type]
    assert "Did you mean" not in str(refusal.value)
