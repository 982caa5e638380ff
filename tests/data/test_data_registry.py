from __future__ import annotations

from pathlib import Path

import pytest

from gspool import data
from gspool.data.registry import ROOT_VARIABLE, data_root


def test_every_promised_name_is_there():
    promised = (
        "glyphs folder cub cars196 sop inshop flowers cifar10 cifar100 collage cub_collage distilled tokens imagenet"
    )
    assert data.list() == promised.split()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"name": "glyph"}, r"no data set 'glyph', did you mean 'glyphs'\?; known are glyphs, folder"),
        ({"name": "glyphs", "split": "val"}, "has no split 'val'; choose one of train, validation, test"),
        ({"name": "glyphs", "split": "all"}, "glyphs has no split 'all'"),
        ({"name": "glyphs", "sizes": 32}, r"no option 'sizes', did you mean 'size'\?; its options are size"),
        ({"name": "cub", "split_seed": 3}, "cub has no option 'split_seed'; its options are fold, folds"),
        ({"name": "folder"}, "folder needs a root"),
    ],
)
def test_wrong_words_are_refused_with_the_right_ones(arguments, told):
    with pytest.raises(ValueError, match=told):
        data.create(**arguments)


def test_the_root_is_asked_for_in_order(monkeypatch, tmp_path, cub_tree):
    monkeypatch.setenv(ROOT_VARIABLE, str(cub_tree))
    assert data_root("~/x") == Path.home() / "x"
    assert len(data.create("cub", split="train", allow_partial=True)) == 6
    monkeypatch.delenv(ROOT_VARIABLE)
    assert data_root() == Path.home() / ".cache" / "gspool" / "data"
    # Generated data needs no root.
    assert len(data.create("tokens", tmp_path / "nowhere", samples_per_class=1)) == 16
