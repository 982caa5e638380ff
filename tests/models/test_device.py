"""Where a model computes."""

from __future__ import annotations

import pytest
import torch

from gspool.models.device import chosen_device


def test_without_a_wish_the_best_there_is():
    assert chosen_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("wish", ["gpu", "cuda:4096", torch.device("cuda", 100)])
def test_a_device_that_is_not_here_is_named_with_what_to_do(wish):
    with pytest.raises(ValueError, match=rf"device '{wish}' cannot be used here .*cpu"):
        chosen_device(wish)
