"""Tokens once: the numbers of the backbone, computed once a picture, again after any change, and never half."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image

from gspool import data
from gspool.data import ImageSet
from gspool.data.image_source import FileImages
from gspool.executor import Executor
from gspool.features import FeatureConfig, extract, extract_tokens, extractor, store
from gspool.features.extractor import picture_fingerprint
from gspool.features.store import TokenStore
from gspool.models import Backbone, Pixels, create_backbone
from gspool.models.pixels import PixelNormalisation


class Counting(Backbone):
    """Tokens are pooled pixels; every image that runs through is counted."""

    def __init__(self) -> None:
        super().__init__(channels=3, pixels=Pixels(size=32, resize=32))
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.seen = 0

    def forward(self, pixels):
        self.seen += len(pixels)
        return self.scale * torch.nn.functional.avg_pool2d(pixels, 8)


@pytest.fixture
def pictures(tmp_path) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    paths = []
    for number in range(10):
        pixels = torch.randint(256, (40, 50, 3), generator=generator, dtype=torch.uint8)
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels.numpy()).save(paths[-1])
    return ImageSet(FileImages(paths), [0, 1] * 5, ("a", "b"), name="pictures")


def config(tmp_path: Path, **options) -> FeatureConfig:
    return FeatureConfig(**{"folder": str(tmp_path / "tokens"), "precision": "fp32", "batch_size": 4, **options})


def test_tokens_are_what_the_backbone_computes_view_by_view(pictures, tmp_path):
    backbone = create_backbone("timm/test_vit", img_size=32)
    (tokens,) = extract_tokens(backbone, [pictures], config(tmp_path), name="test_vit")
    assert (tokens.layout.views, tokens.layout.prefix, tokens.layout.class_token) == (2, 1, True)
    crop = data.evaluation_transform(32, resize=backbone.pixels.resize, interpolation=backbone.pixels.interpolation)
    for index in (0, 7):
        image = crop(pictures.images[index])[None]
        for view, seen in enumerate((image, image.flip(-1))):
            with torch.no_grad():
                features = backbone.features(PixelNormalisation(backbone.pixels)(seen))
            expected = torch.cat([features.class_token[:, None], features.map.flatten(2).mT], 1)
            torch.testing.assert_close(tokens.rows(torch.tensor([index]), view), expected)
    assert torch.equal(tokens.labels, pictures.labels)


def test_memory_and_disk_hold_the_same_tokens(pictures, tmp_path):
    (tokens,) = extract_tokens(Counting(), [pictures], config(tmp_path), name="counting")
    rows, views = torch.tensor([3, 9, 0, 3]), torch.tensor([0, 1, 1, 1])
    from_disk = tokens.rows(rows, views)
    torch.testing.assert_close(tokens.load("cpu").rows(rows, views), from_disk)


def test_nothing_is_computed_twice_and_changes_are_computed_again(pictures, tmp_path):
    backbone, settings = Counting(), config(tmp_path, views=["centre"])

    def computed(name: str = "counting") -> int:
        before = backbone.seen
        extract_tokens(backbone, [pictures], settings, name=name)
        # One blank picture tells the layout.
        return backbone.seen - before - 1

    assert computed() == 10
    assert computed() == 0
    path = pictures.images.paths[4]
    os.utime(path, ns=(1, 1))
    assert computed() == 1
    assert computed("another") == 10
    backbone.blocks = (1, 3)
    assert computed() == 10
    del backbone.blocks
    assert computed() == 0
    with torch.no_grad():
        backbone.scale += 1
    assert computed() == 10
    backbone.blocks = (5, 11)  # other blocks of the same weights
    assert computed() == 10


def test_an_interrupted_extraction_goes_on_with_what_is_missing(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(extract.TokenLayout, "shard_pictures", property(lambda self: 3))
    settings, done = config(tmp_path, views=["centre"], batch_size=3), []

    def stop(count: int) -> None:
        done.append(count)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_tokens(Counting(), [pictures], settings, name="counting", advance=stop)
    (folder,) = (tmp_path / "tokens").iterdir()
    # Shards that were being written when the second one was told are finished, too.
    kept = len(TokenStore(folder).locations())
    backbone = Counting()
    (tokens,) = extract_tokens(backbone, [pictures], settings, name="counting")
    assert kept >= sum(done) == 6
    assert backbone.seen == 1 + 10 - kept
    tokens.store.check()
    whole = extract_tokens(Counting(), [pictures], config(tmp_path / "other", views=["centre"]), name="counting")[0]
    torch.testing.assert_close(tokens.load("cpu").memory, whole.load("cpu").memory)


def test_a_slow_machine_finishes_shards_early(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(extractor, "SHARD_SECONDS", -1.0)
    done = []
    (tokens,) = extract_tokens(Counting(), [pictures], config(tmp_path), name="counting", advance=done.append)
    assert done == [4, 4, 2]
    assert len({location.shard for location in tokens.locations}) == 3


def test_random_crops_do_not_depend_on_processes_or_order(pictures, tmp_path):
    first, second = (
        extract_tokens(Counting(), [each], config(tmp_path / str(workers), crops=2, workers=workers), name="counting")[
            0
        ]
        for workers, each in ((1, pictures), (3, pictures.subset(range(9, -1, -1))))
    )
    torch.testing.assert_close(first.load("cpu").memory, second.load("cpu").memory.flip(0))
    assert not torch.equal(first.memory[:, 2], first.memory[:, 3])


def test_several_processes_write_the_tokens_of_one(pictures, tmp_path):
    backbone = create_backbone("timm/test_vit", img_size=32)
    (alone,) = extract_tokens(backbone, [pictures.subset(range(9))], config(tmp_path / "alone"), name="vit")
    pictures.images.paths[9].write_bytes(b"no picture")
    with pytest.warns(UserWarning, match="9.png"):
        (together,) = extract_tokens(
            backbone, [pictures], config(tmp_path / "b"), name="vit", executor=Executor(workers=2), broken="skip"
        )
    torch.testing.assert_close(together.load("cpu").memory, alone.load("cpu").memory)
    assert len({location.shard for location in together.locations}) == 2


def test_damaged_tokens_are_found_and_computed_again(pictures, tmp_path):
    settings = config(tmp_path, views=["centre"])
    (first,) = extract_tokens(Counting(), [pictures], settings, name="counting")
    expected = first.load("cpu").memory
    (store,) = (tmp_path / "tokens").iterdir()
    shard = next(store.glob("*.bin"))
    content = bytearray(shard.read_bytes())
    content[33] ^= 4
    shard.write_bytes(content)
    backbone = Counting()
    with pytest.warns(UserWarning, match="damaged and computed again"):
        (again,) = extract_tokens(backbone, [pictures], settings, name="counting")
    assert backbone.seen == 11
    again.store.check()
    torch.testing.assert_close(again.load("cpu").memory, expected)


def test_the_budget_is_told_before_any_work(pictures, tmp_path):
    backbone = Counting()
    with pytest.raises(ValueError, match=r"10 pictures x 2 views exceed --features.budget.*int8"):
        extract_tokens(backbone, [pictures], config(tmp_path, budget=1e-9), name="counting")
    assert backbone.seen == 1


def test_a_small_disk_is_told_before_any_work(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(extract.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    with pytest.raises(ValueError, match="do not fit on the disk"):
        extract_tokens(Counting(), [pictures], config(tmp_path), name="counting")


def test_a_store_that_another_process_fills_is_refused(pictures, tmp_path):
    from gspool.files import lock

    settings = config(tmp_path)
    extract_tokens(Counting(), [pictures.subset([0])], settings, name="counting")
    (store,) = (tmp_path / "tokens").iterdir()
    with lock(store / ".lock", "taken"), pytest.raises(ValueError, match="another process"):
        extract_tokens(Counting(), [pictures], settings, name="counting")


def test_broken_pictures_are_named_and_all_others_computed(pictures, tmp_path):
    paths = pictures.images.paths
    paths[2].write_bytes(b"no picture")
    paths[6].unlink()
    backbone, settings = Counting(), config(tmp_path, views=["centre"])
    with pytest.raises(ValueError, match=r"(?s)2 of 10 images cannot be read.*2.png.*6.png.*data.check skip"):
        extract_tokens(backbone, [pictures], settings, name="counting")
    with pytest.warns(UserWarning, match=r"(?s)without broken images: 2 of 10.*2.png.*6.png"):
        (tokens,) = extract_tokens(backbone, [pictures], settings, name="counting", broken="skip")
    assert backbone.seen == 2 + 8
    sound = [0, 1, 3, 4, 5, 7, 8, 9]
    assert tokens.labels.tolist() == pictures.labels[sound].tolist()
    (expected,) = extract_tokens(backbone, [pictures.subset(sound)], settings, name="counting")
    torch.testing.assert_close(tokens.load("cpu").memory, expected.load("cpu").memory)


def test_a_set_of_broken_pictures_alone_is_refused(pictures, tmp_path):
    for path in pictures.images.paths:
        path.write_bytes(b"no picture")
    with pytest.raises(ValueError, match="10 of 10 images"):
        extract_tokens(Counting(), [pictures], config(tmp_path), name="counting", broken="skip")


def test_a_full_disk_is_explained_and_finished_shards_are_kept(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(extract.TokenLayout, "shard_pictures", property(lambda self: 3))
    settings, write = config(tmp_path, views=["centre"], batch_size=3), store.write_atomic

    def full(path, content):
        # The third of four shards.
        if path.stem == picture_fingerprint(pictures, 6):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(store, "write_atomic", full)
        with pytest.raises(OSError, match=r"is full; finished shards are kept.*same command"):
            extract_tokens(Counting(), [pictures], settings, name="counting")
    (folder,) = (tmp_path / "tokens").iterdir()
    assert not list(folder.glob(".*.part"))
    kept = len(TokenStore(folder).locations())
    backbone = Counting()
    (tokens,) = extract_tokens(backbone, [pictures], settings, name="counting")
    assert kept >= 6
    assert backbone.seen == 1 + 10 - kept
    tokens.store.check()


class Pooled(Counting):
    def forward(self, pixels):
        return pixels.mean((2, 3))


class Cropping(Counting):
    """The map depends on the content: that of a blank picture is larger."""

    def forward(self, pixels):
        return super().forward(pixels if len(pixels) == 1 else pixels[..., 8:])


@pytest.mark.parametrize(("backbone", "match"), [(Pooled, "no patch tokens"), (Cropping, "one size")])
def test_a_backbone_without_tokens_or_with_maps_of_several_sizes_is_refused(pictures, tmp_path, backbone, match):
    with pytest.raises(ValueError, match=match):
        extract_tokens(backbone(), [pictures], config(tmp_path), name="odd")


def test_tokens_over_ray_are_those_of_one_process(pictures, tmp_path):
    backbone = create_backbone("timm/test_vit", img_size=32)
    (alone,) = extract_tokens(backbone, [pictures], config(tmp_path / "alone"), name="vit")
    executor = Executor(workers=2, ray="local", cpus=0.5)
    (together,) = extract_tokens(backbone, [pictures], config(tmp_path / "ray"), name="vit", executor=executor)
    torch.testing.assert_close(together.load("cpu").memory, alone.load("cpu").memory)
    assert len({location.shard for location in together.locations}) == 2


def _sum_of(tokens) -> float:
    assert tokens.memory is None
    assert tokens.open_shared()
    return float(tokens.memory.float().sum())


@pytest.mark.gpu
def test_processes_share_tokens_in_gpu_memory(pictures, tmp_path):
    (tokens,) = extract_tokens(Counting(), [pictures], config(tmp_path), name="counting", device="cuda")
    expected = float(tokens.load("cuda").memory.float().sum())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_sum_of, (tokens,)) == pytest.approx(expected)


def test_memory_does_not_travel_to_another_process(pictures, tmp_path):
    (tokens,) = extract_tokens(Counting(), [pictures], config(tmp_path), name="counting")
    tokens.load("cpu")
    copy = pickle.loads(pickle.dumps(tokens))
    assert copy.memory is None
    assert not copy.open_shared()
    torch.testing.assert_close(copy.rows(torch.tensor([3])), tokens.rows(torch.tensor([3])))


@pytest.mark.parametrize(
    ("options", "match"),
    [({"views": []}, "views"), ({"crops": -1}, "crops"), ({"batch_size": 0}, "batch_size"), ({"budget": 0}, "budget")],
)
def test_wrong_settings_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        FeatureConfig(**options)
