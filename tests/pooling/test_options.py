"""Options that no layer can take are refused, in words that name the option."""

from __future__ import annotations

import math

import pytest

from gspool.pooling import registry

DIM = 6
# Layer, option, message, values.
WRONG_VALUES = [
    ("cbam", "reduction", "reduction divides the 6 channels", (0, -1, 7, 1.5)),
    ("cbam", "kernel_size", "kernel_size must be odd", (0, 2, -3, 3.0)),
    ("delf", "hidden", "hidden is the width", (0, -1, 2.5)),
    ("gemean", "p", "power of a generalized mean", (0.0, -3.0, 1e-4, math.inf, math.nan)),
    ("gemean", "minimum", "minimum", (0.0,)),
    ("gemean+gsp", "p", "power of a generalized mean", (0.0, -1.0, math.nan)),
    ("gmp+gsp", "mu", r"\(0, 1\]", (1.5,)),
    ("gemax", "ridge", "ridge", (0.0, -1.0, math.inf, math.nan)),
    ("gsop", "attention_dim", "attention_dim must be a positive integer", (0, -1, 2.5)),
    ("gsop", "grid", "grid must be a positive integer", (0, -1, 2.5)),
    ("otp", "out_dim", "out_dim must be prototypes", (100,)),
    ("otp", "out_dim", "out_dim must be a positive integer", (12.0,)),
    ("otp", "prototypes", "prototypes must be a positive integer", (0, None)),
    ("otp", "token_dim", "token_dim must be a positive integer", (-1,)),
    ("otp", "epsilon", "epsilon multiplies the cost", (0.0, math.inf)),
    ("otp", "iterations", "iterations is the number", (0,)),
    ("vlad", "out_dim", "out_dim must be prototypes", (100,)),
    ("vlad", "prototypes", "prototypes must be a positive integer", (-2,)),
    ("vlad", "token_dim", "token_dim must be a positive integer", (0,)),
    ("solar", "reduction", "reduction divides the 6 channels", (0, -1, 7, 1.5)),
    ("solar", "p", "p is the power", (0.0, -1.0, math.nan)),
    ("tfm", "layers", "layers is the number", (0, 1.5)),
    ("tfm", "heads", "heads share the 6 channels", (4, 0)),
    ("tfm", "mlp_ratio", "mlp_ratio must leave", (0.0,)),
    ("tfm", "dropout", "dropout is a probability", (1.0, -0.1)),
    ("tfm", "position", "position must be one of .*'none', 'sinusoidal'", ("learned",)),
    ("tfm", "position", "channels by fours", ("sinusoidal",)),
    ("tsmk", "kernel_size", "odd and positive", (0, 2, -3)),
    ("weldon", "k", "at least", (0, -1)),
    ("weldon", "k_min", "at least", (-1,)),
    ("attention", "num_heads", "num_heads must divide the 6 channels", (0, 4, -1)),
    ("simpool", "num_heads", "num_heads must divide the 6 channels", (0, 4, -1)),
    ("simpool", "gamma", "gamma", (0.0,)),
    ("lse", "r", "sharpness", (0.0, -1.0, math.inf, math.nan)),
    ("ep", "queries", "divide", (4,)),
    ("abmilp", "hidden", "hidden", (0,)),
    ("aim", "num_heads", "divide", (4,)),
    ("clip", "num_heads", "divide", (4, 2.0)),
    ("map", "num_heads", "divide", (4,)),
    ("gap+cls", "queries", "queries", (3,)),
    ("gsp", "prototypes", "prototypes", (0, 2.5)),
    ("gsp", "mu", r"\(0, 1\]", (0.0, 1.1)),
    ("gsp", "epsilon", "epsilon", (-1.0,)),
    ("gsp", "role", "role must be one of", ("both",)),
    ("gsp", "backend", "backend must be one of", ("cuda",)),
    ("gsp", "precision", "precision must be one of exact, tf32", ("fp8",)),
    ("gsp", "warm_start", "at least the 64 prototypes", (3,)),
    ("gsp", "keys", "keys", (-1,)),
    ("gsp", "groups", "groups", (0, 4)),
]
WRONG_TOGETHER = [
    ("otp", {"out_dim": 128, "prototypes": 8, "token_dim": 10}, "out_dim must be prototypes"),
    ("otp", {"out_dim": 4, "prototypes": 8}, "out_dim must be prototypes"),
    ("weldon", {"k": 3, "k_min": -1}, "at least"),
    ("gsp", {"mu": 1.0, "learn_mu": True}, "cannot be learned"),
    ("gsp", {"mu": 1.0, "role": "background"}, "background"),
    ("gsp", {"epsilon": 0.0, "learn_epsilon": True}, "cannot be learned"),
    ("gsp", {"keys": 4, "warm_start": 64}, "keys"),
    ("gemean", {"learn_power": True}, r"gemean has no option 'learn_power'.*learn_p, per_channel, minimum"),
    ("tsmk", {"kernelsize": 5}, "Did you mean 'kernel_size'"),
    ("gap", {"p": 3}, r"gap has no option 'p'\. It has none"),
    ("gmp", {"out_dim": 2}, r"create_embedding\('gmp', dim, out_dim\)"),
]


@pytest.mark.parametrize(("name", "option", "message", "values"), WRONG_VALUES)
def test_values_out_of_range_are_refused(name, option, message, values):
    for value in values:
        with pytest.raises(ValueError, match=message):
            registry.create(name, DIM, **{option: value})


@pytest.mark.parametrize(("name", "options", "message"), WRONG_TOGETHER)
def test_options_that_do_not_exist_or_fit_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        registry.create(name, DIM, **options)


@pytest.mark.parametrize("dim", [0, -3, 2.5, "8", None])
@pytest.mark.parametrize("name", registry.list())
def test_a_number_of_channels_that_is_none_is_refused(name, dim):
    with pytest.raises(ValueError, match="dim"):
        registry.create(name, dim)


def test_the_rarity_of_channels_needs_two():
    with pytest.raises(ValueError, match="dim >= 2"):
        registry.create("crow", 1)
