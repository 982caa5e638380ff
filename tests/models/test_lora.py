from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gspool.models import Embedder, Lora

IMAGES = torch.randint(256, (4, 3, 160, 160), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def model_with(lora: Lora | None, freeze: str = "none") -> Embedder:
    torch.manual_seed(0)
    return Embedder("timm/test_vit", "gap", dim=8, freeze=freeze, lora=lora)


def learned(model: Embedder) -> set[str]:
    """Make a rough step, and return the parameters of the backbone that it changed."""
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    optimiser = torch.optim.SGD(model.train().parameter_groups(lr=5.0))
    for _ in range(2):  # the first step moves B alone, because it starts at zero
        optimiser.zero_grad()
        model(IMAGES)[:, 0].sum().backward()
        optimiser.step()
    return {name for name, value in model.backbone.state_dict().items() if not torch.equal(value, before[name])}


def embed(model: Embedder) -> Tensor:
    with torch.no_grad():
        return model.eval()(IMAGES)


def test_new_adapters_change_nothing_and_learn_alone() -> None:
    plain, adapted = model_with(None), model_with(Lora(rank=2))
    adapted.head.load_state_dict(plain.head.state_dict())
    torch.testing.assert_close(embed(adapted), embed(plain))
    moved = learned(adapted)
    assert len(moved) == 2 * len(adapted.backbone.network.blocks)
    assert all(".qkv.lora_" in name for name in moved)


def test_freezing_applies_to_adapters() -> None:
    model = model_with(Lora(rank=2, targets=["qkv", "fc1"]), freeze="all-but-2")
    last = {f"network.blocks.{index}." for index in (4, 5)}
    assert {name[: len("network.blocks.0.")] for name in learned(model)} == last
    assert learned(model.freeze("all")) == set()


@pytest.mark.parametrize("alpha", [None, 3.0])
def test_a_saved_model_has_the_adapters_in_its_weights(tmp_path: Path, alpha: float | None) -> None:
    model = model_with(Lora(rank=2, alpha=alpha))
    learned(model)
    model.save_pretrained(tmp_path)
    again = Embedder.from_pretrained(tmp_path)
    assert set(again.state_dict()) == set(model_with(None).state_dict())
    torch.testing.assert_close(embed(again), embed(model))
    assert not torch.allclose(embed(again), embed(model_with(None)))
    # A loaded model can get new adapters.
    torch.testing.assert_close(embed(again.add_lora(Lora(rank=1))), embed(model))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"targets \['query'\].*fc1, fc2, proj, qkv"):
        model_with(Lora(rank=2, targets=["query"]))
    with pytest.raises(ValueError, match="adapters already"):
        model_with(Lora(rank=2)).add_lora(Lora(rank=2))
    with pytest.raises(ValueError, match=r"rank must be positive.*-1"):
        Lora(rank=-1)
