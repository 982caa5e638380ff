"""The token store: what is written comes back, what is damaged is found, what is unfinished does not count."""

from __future__ import annotations

import pytest
import torch

from gspool.features.store import TokenLayout, TokenStore

LAYOUT = TokenLayout(views=2, prefix=1, class_token=True, tokens=6, channels=5, grid=(2, 3), precision="fp32")


def tokens(count):
    return torch.randn(count, *LAYOUT.shape, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize(("precision", "worst"), [("fp32", 0.0), ("fp16", 1e-3), ("bf16", 1e-2), ("int8", 2e-2)])
def test_tokens_come_back_within_the_rounding_of_their_precision(tmp_path, precision, worst):
    layout = LAYOUT._replace(precision=precision)
    written = tokens(7)
    TokenStore(tmp_path, layout).write(list("abcdefg"), written)
    found = TokenStore(tmp_path)
    assert found.layout == layout
    places = found.locations()
    read = found.read([places[name] for name in "gab"]).float()
    expected = written[[6, 0, 1]]
    assert (read - expected).abs().max() <= worst * expected.abs().max()
    torch.testing.assert_close(found.read([places["c"]], views=1), found.read([places["c"]])[:, 1])
    # int8 holds one byte a number and two for the scale of a vector.
    size = sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix in (".bin", ".scale"))
    assert size == 7 * layout.picture_bytes


def test_pictures_are_read_in_the_order_asked_for_and_a_shard_without_its_list_does_not_count(tmp_path):
    store = TokenStore(tmp_path, LAYOUT)
    first, second = tokens(3), tokens(4)
    store.write(["a", "b", "c"], first)
    store.write(["d", "e", "f", "g"], second)
    places = store.locations()
    read = store.read([places[name] for name in "fbd"])
    torch.testing.assert_close(read, torch.stack([second[2], first[1], second[0]]))
    (tmp_path / "a.json").unlink()
    assert [*store.locations()] == ["d", "e", "f", "g"]


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_shard_is_found(tmp_path, damage):
    store = TokenStore(tmp_path, LAYOUT)
    store.write(["a", "b"], tokens(2))
    assert store.damaged() == []
    shard = tmp_path / "a.bin"
    content = bytearray(shard.read_bytes())
    content[17] ^= 1
    shard.unlink()
    if damage != "remove":
        shard.write_bytes(content if damage == "flip" else content[:-4])
    assert store.damaged() == [tmp_path / "a.json"]


def test_another_layout_is_refused(tmp_path):
    TokenStore(tmp_path, LAYOUT)
    with pytest.raises(ValueError, match="layout"):
        TokenStore(tmp_path, LAYOUT._replace(channels=6))
    with pytest.raises(ValueError, match="shape"):
        TokenStore(tmp_path).write(["a"], torch.zeros(1, 2, 7, 4))
