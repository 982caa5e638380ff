"""Layers as a person writes them."""

from __future__ import annotations

import pytest

from gspool import pooling
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
    layer = pooling.create(word.name, 8, **word.options)
    assert layer.prototypes.shape[0] == 128


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("gps", "there is no pooling layer 'gps'. Did you mean 'gsp'"),
        ("gsp:mue=0.2", "gsp has no option 'mue'. Did you mean 'mu'"),
        ("gsp:mu", "options are written NAME:OPTION=VALUE"),
        ("gsp:mu=", "options are written NAME:OPTION=VALUE"),
        ("gsp:warm_start=64", "during a warm start the layer only averages"),
        ("", "there is no pooling layer ''"),
    ],
)
def test_what_cannot_be_meant_is_answered_with_what_can(word, message):
    with pytest.raises(ValueError, match=message):
        read_layer(word)


def test_a_backend_goes_to_the_layers_that_have_one():
    words = read_layers(["gmp", "gsp", "gmp+gsp"], "torch")
    assert [word.options for word in words] == [{}, {}, {"backend": "torch"}, {"backend": "torch"}]


def test_all_backends_stand_beside_each_other_and_one_that_was_written_stays():
    words = read_layers(["gsp:mu=0.2", "gsp:backend=torch"], "all")
    assert [word.title for word in words] == [
        "gap",
        "gsp:mu=0.2 (torch)",
        "gsp:mu=0.2 (triton)",
        "gsp:backend=torch",
    ]
    assert words[2].options == {"mu": 0.2, "backend": "triton"}


def test_a_backend_for_layers_without_one_is_refused():
    with pytest.raises(ValueError, match="none of gap, gmp has one"):
        read_layers(["gmp"], "triton")
