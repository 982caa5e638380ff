from __future__ import annotations

from pathlib import Path

import pytest

from gspool import data
from gspool.data.registry import ROOT_VARIABLE, data_root


def test_every_promised_name_is_there() -> None:
    promised = (
        "glyphs folder cub cars196 sop inshop flowers cifar10 cifar100 collage cub_collage distilled tokens imagenet"
    )
    assert data.list() == promised.split()


def test_wrong_words_are_refused_with_the_right_ones() -> None:
    with pytest.raises(ValueError, match=r"no data set 'glyph', did you mean 'glyphs'\?; known are glyphs, folder"):
        data.create("glyph")
    with pytest.raises(ValueError, match="glyphs has no split 'val'; choose one of train, validation, test"):
        data.create("glyphs", split="val")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"glyphs has no option 'sizes', did you mean 'size'\?; its options are size"):
        data.create("glyphs", sizes=32)
    with pytest.raises(ValueError, match="cub has no option 'split_seed'; its options are fold, folds"):
        data.create("cub", split_seed=3)


def test_the_root_is_asked_for_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cub_tree: Path) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(cub_tree))
    assert data_root("~/x") == Path.home() / "x"
    assert len(data.create("cub", split="train", allow_partial=True)) == 6
    monkeypatch.delenv(ROOT_VARIABLE)
    assert data_root() == Path.home() / ".cache" / "gspool" / "data"


def test_generated_data_needs_no_root(tmp_path: Path) -> None:
    assert len(data.create("tokens", tmp_path / "nowhere", samples_per_class=1)) == 16
