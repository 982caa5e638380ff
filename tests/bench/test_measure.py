"""Layers as a person writes them; real measurements, tiny: every layer, several maps, networks; what is refused."""

from __future__ import annotations

import sys

import pytest
import torch

from gspool import GSP, pooling
from gspool.bench import Settings, measure
from gspool.bench.measure import check_kernels, make_features
from gspool.bench.settings import read_layer, read_layers

TINY = {"batch": 2, "channels": 16, "sizes": ((3, 3),), "device": "cpu", "repeats": 2}


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


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_every_layer_can_be_measured_in_every_type(dtype, backward):
    measured = measure(Settings(layers=("all",), dtype=dtype, backward=backward, **TINY))
    assert [row.title for row in measured.rows] == pooling.list()
    assert all(row.alone.time.median > 0 and row.alone.repeats == 2 for row in measured.rows)
    assert all(row.alone.memory is None and row.network is None for row in measured.rows)
    assert {row.title for row in measured.rows if row.backend == "torch"} == {"gsp", "gmp+gsp", "gemean+gsp"}


def test_a_larger_map_costs_more():
    settings = Settings(layers=("gsp",), **TINY | {"sizes": ((2, 2), (64, 64)), "channels": 64, "repeats": 15})
    small, large = (row for row in measure(settings).rows if row.title == "gsp")
    assert (small.size, large.size) == ("2x2", "64x64")
    # The quickest of the repeats: beside other work the median is that of waiting for a core.
    assert large.alone.time.low > 2 * small.alone.time.low


def test_features_have_the_shape_type_and_layout_that_were_asked_for():
    settings = Settings(**TINY | {"channels_last": True, "dtype": "bfloat16"})
    features = make_features(settings, (3, 5), torch.device("cpu"))
    assert features.shape == (2, 16, 3, 5)
    assert features.dtype == torch.bfloat16
    assert features.is_contiguous(memory_format=torch.channels_last)
    assert features.min() >= 0


@pytest.mark.parametrize(("model", "channels", "size"), [("resnet20", 64, "8x8"), ("timm/test_vit", 64, "10x10")])
def test_in_a_whole_network_the_map_is_its_own(model, channels, size):
    measured = measure(Settings(layers=("gsp:prototypes=4",), model=model, **TINY))
    assert {(row.channels, row.size) for row in measured.rows} == {(channels, size)}
    for row in measured.rows:
        assert row.network.time.low > row.alone.time.low


@pytest.mark.parametrize("backward", [True, False])
def test_a_network_runs_in_a_half_type_too(backward):
    settings = Settings(layers=("gap",), model="resnet20", dtype="bfloat16", backward=backward, **TINY)
    assert measure(settings).rows[0].network.repeats == 2


def test_images_may_have_another_size():
    measured = measure(Settings(layers=("gap",), model="resnet20", pixels=(64, 32), **TINY))
    assert measured.rows[0].size == "16x8"


def test_a_backend_that_cannot_run_is_left_out_openly_where_all_were_asked_for():
    measured = measure(Settings(layers=("gsp",), backend="all", **TINY))
    assert [row.title for row in measured.rows] == ["gap", "gsp (torch)"]
    (refused,) = measured.refused
    assert refused.title == "gsp (triton)"
    assert "need a CUDA device" in refused.reason


def test_a_backend_that_one_map_refuses_is_told_once_wherever_that_map_is(monkeypatch):
    def uses_kernels(backend, prototypes, features, *others):
        if backend == "triton" or features.shape[-1] < 5:
            raise ValueError(f"no {backend}")
        return False

    # By its full name: gspool.bench.measure is also a function.
    monkeypatch.setattr(sys.modules["gspool.bench.measure"], "uses_kernels", uses_kernels)
    measured = measure(Settings(layers=("gsp",), backend="all", **TINY | {"sizes": ((3, 3), (2, 2), (5, 5))}))
    assert measured.refused == [("gsp (torch)", "no torch"), ("gsp (triton)", "no triton")]
    assert [row.size for row in measured.rows if row.name == "gsp"] == ["5x5"]


def test_kernels_that_compute_something_wrong_are_not_timed(monkeypatch):
    layer, features = GSP(16, prototypes=4), torch.rand(2, 16, 3, 3)
    check_kernels(layer, features)
    right = GSP.pool

    def wrong(self, x, mask=None):
        out = right(self, x, mask)
        return out if x.dtype == torch.float64 else out._replace(pooled=1.001 * out.pooled)

    monkeypatch.setattr(GSP, "pool", wrong)
    with pytest.raises(ValueError, match=r"the kernels' vectors are off by 1\.0e-03 .* not timed"):
        check_kernels(layer, features)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"device": "meta"}, "time is measured on cpu and cuda, got meta"),
        ({"model": "resnet21"}, "there is no backbone 'resnet21'"),
        ({"batch": 10**9}, "do not fit into memory; use a smaller batch"),
    ],
)
def test_what_cannot_be_measured_here_is_said_in_words(wrong, message):
    with pytest.raises(ValueError, match=message):
        measure(Settings(**TINY | wrong))
