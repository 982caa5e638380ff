"""Layers as a person writes them, and settings that cannot be."""

from __future__ import annotations

import pytest

from gspool import pooling
from gspool.bench import Settings
from gspool.bench.settings import read_layer, read_layers


def test_average_pooling_is_measured_in_any_case_first_and_once():
    assert [word.title for word in read_layers(["gsp", "gap", "gsp"])] == ["gap", "gsp"]


def test_all_is_every_layer_of_the_registry():
    assert [word.name for word in read_layers(["all"])] == pooling.list()


def test_options_are_read_as_what_they_are():
    word = read_layer("gsp:mu=0.2,prototypes=128,learn_mu=true,role=background")
    assert word.name == "gsp"
    assert word.options == {"mu": 0.2, "prototypes": 128, "learn_mu": True, "role": "background"}
    assert read_layer("weldon:k_min=none").options == {"k_min": None}
    assert pooling.create(word.name, 8, **word.options).prototypes.shape[0] == 128


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("", "there is no pooling layer ''"),
        ("gsp:mu", "options are written NAME:OPTION=VALUE"),
        ("gsp:mu=", "options are written NAME:OPTION=VALUE"),
        ("gsp:warm_start=64", "during a warm start the layer only averages"),
    ],
)
def test_what_cannot_be_meant_is_answered_with_what_can(word, message):
    with pytest.raises(ValueError, match=message):
        read_layer(word)


def test_a_backend_goes_to_the_layers_that_have_one_and_an_explicit_one_stays():
    words = read_layers(["gmp", "gsp", "gmp+gsp"], "torch")
    assert [word.options for word in words] == [{}, {}, {"backend": "torch"}, {"backend": "torch"}]
    words = read_layers(["gsp:mu=0.2", "gsp:backend=torch"], "all")
    assert [word.options.get("backend") for word in words] == [None, "torch", "triton", "torch"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"channels": -1}, "channels must be at least 1"),
        ({"sizes": ((0, 3),)}, "at least 1, got 0x3"),
        ({"sizes": ()}, "at least one layer and one size"),
        ({"dtype": "int8"}, "one of float32, bfloat16, float16, float64, got 'int8'"),
        ({"backend": "cuda"}, "one of auto, torch, triton, all"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)
