"""Tokens once: the numbers of the backbone, computed once a picture, again after any change, and never half."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import pickle

import pytest
import torch
from PIL import Image

from gspool import data
from gspool.data import FileImages, ImageSet
from gspool.executor import Executor
from gspool.features import FeatureConfig, extract, extract_tokens, extractor, store
from gspool.features.extractor import picture_fingerprint
from gspool.features.store import TokenStore
from gspool.files import lock
from gspool.models import Backbone, Pixels, create_backbone
from gspool.models.pixels import PixelNormalisation


class Counting(Backbone):
    """Tokens are pooled pixels; every image that runs through is counted."""

    def __init__(self):
        super().__init__(channels=3, pixels=Pixels(size=32, resize=32))
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.seen = 0

    def forward(self, pixels):
        self.seen += len(pixels)
        return self.scale * torch.nn.functional.avg_pool2d(pixels, 8)


@pytest.fixture
def pictures(tmp_path):
    generator = torch.Generator().manual_seed(0)
    paths = []
    for number in range(10):
        pixels = torch.randint(256, (40, 50, 3), generator=generator, dtype=torch.uint8)
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels.numpy()).save(paths[-1])
    return ImageSet(FileImages(paths), [0, 1] * 5, ("a", "b"), name="pictures")


@pytest.fixture
def extracted(tmp_path):
    """Return a function that extracts the tokens of one set."""

    def tokens_of(images, backbone=None, folder="tokens", name="net", executor=None, **options):
        own = {key: options.pop(key) for key in ("broken", "advance", "device") if key in options}
        config = FeatureConfig(**{"folder": str(tmp_path / folder), "precision": "fp32", "batch_size": 4, **options})
        backbone = Counting() if backbone is None else backbone
        return extract_tokens(backbone, [images], config, name=name, executor=executor, **own)[0]

    return tokens_of


def everything(tokens):
    return tokens.load("cpu").memory


def test_tokens_are_what_the_backbone_computes_view_by_view(pictures, extracted):
    backbone = create_backbone("timm/test_vit", img_size=32)
    tokens = extracted(pictures, backbone)
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


@pytest.mark.parametrize("able", [True, False])
def test_the_forward_pass_is_in_bf16_where_the_cpu_computes_in_it(able, pictures, extracted, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": able}, raising=False)
    backbone = create_backbone("timm/test_vit", img_size=32)
    of_device, full, half = (
        everything(extracted(pictures, backbone, folder, precision="bf16", compute=compute))
        for folder, compute in (("auto", "auto"), ("full", "fp32"), ("half", "bf16"))
    )
    assert torch.equal(of_device, half if able else full)
    assert not torch.equal(full, half)
    # What is stored in full precision is computed in it.
    exact = [everything(extracted(pictures, backbone, each, compute=each)) for each in ("auto", "fp32")]
    assert torch.equal(*exact)


def test_memory_holds_the_tokens_of_the_disk_and_does_not_travel_to_another_process(pictures, extracted):
    tokens = extracted(pictures)
    rows, views = torch.tensor([3, 9, 0, 3]), torch.tensor([0, 1, 1, 1])
    from_disk = tokens.rows(rows, views)
    torch.testing.assert_close(tokens.load("cpu").rows(rows, views), from_disk)
    copy = pickle.loads(pickle.dumps(tokens))
    assert copy.memory is None
    assert not copy.open_shared()
    torch.testing.assert_close(copy.rows(rows, views), from_disk)


def test_nothing_is_computed_twice_and_changes_are_computed_again(pictures, extracted):
    backbone = Counting()

    def computed(name="net", view="centre"):
        before = backbone.seen
        extracted(pictures, backbone, name=name, views=[view])
        # One blank picture tells the layout.
        return backbone.seen - before - 1

    assert computed() == 10
    assert computed() == 0
    os.utime(pictures.images.paths[4], ns=(1, 1))
    assert computed() == 1
    assert computed("another") == 10
    assert computed(view="mirror") == 10
    backbone.blocks = (1, 3)
    assert computed() == 10
    del backbone.blocks
    assert computed() == 0
    with torch.no_grad():
        backbone.scale += 1e-6
    assert computed() == 10
    backbone.blocks = (5, 11)  # other blocks of the same weights
    assert computed() == 10


def test_pictures_that_a_cache_has_resized_have_tokens_of_their_own(pictures, extracted, tmp_path):
    whole = picture_fingerprint(pictures, 3)
    state = os.stat(pictures.images.paths[3])
    content = f"{pictures.images.paths[3]} {state.st_size} {state.st_mtime_ns}"
    # Tokens that are stored already keep their names.
    assert whole == hashlib.sha256(content.encode()).hexdigest()[:24]
    resizes = [(None, "bilinear"), (16, "bilinear"), (24, "bilinear"), (24, "bicubic")]
    sets = [
        data.cached(pictures, tmp_path / "decoded", shorter_side=side, interpolation=interpolation)
        for side, interpolation in resizes
    ]
    # Stored as it is, a picture is the picture.
    assert picture_fingerprint(sets[0], 3) == whole
    assert len({picture_fingerprint(each, 3) for each in sets}) == 4
    assert picture_fingerprint(sets[1].subset([3]), 0) == picture_fingerprint(sets[1], 3)
    one, other = (everything(extracted(each)) for each in sets[1:3])
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("fault", "error", "told"),
    [
        ("Ctrl-C", KeyboardInterrupt, None),
        ("full disk", OSError, r"is full; finished shards are kept.*same command"),
    ],
)
def test_an_extraction_that_breaks_off_goes_on_with_what_is_missing(
    pictures, extracted, tmp_path, monkeypatch, fault, error, told
):
    monkeypatch.setattr(extract.TokenLayout, "shard_pictures", property(lambda self: 3))
    settings, done, write = {"views": ["centre"], "batch_size": 3}, [], store.write_atomic

    def advance(count):
        done.append(count)
        if fault == "Ctrl-C" and len(done) == 2:
            raise KeyboardInterrupt

    def write_atomic(path, content):
        if fault == "full disk" and path.stem == picture_fingerprint(pictures, 6):  # the third of four shards
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_atomic", write_atomic)
        with pytest.raises(error, match=told):
            extracted(pictures, **settings, advance=advance)
    (folder,) = (tmp_path / "tokens").iterdir()
    assert not list(folder.glob(".*.part"))
    # Shards that were being written when it broke off are finished, too.
    kept = len(TokenStore(folder).locations())
    assert kept >= max(sum(done), 6)
    backbone = Counting()
    tokens = extracted(pictures, backbone, **settings)
    assert backbone.seen == 1 + 10 - kept
    assert tokens.store.damaged() == []
    torch.testing.assert_close(everything(tokens), everything(extracted(pictures, folder="other", views=["centre"])))


def test_a_slow_machine_finishes_shards_early(pictures, extracted, monkeypatch):
    monkeypatch.setattr(extractor, "SHARD_SECONDS", -1.0)
    done = []
    tokens = extracted(pictures, advance=done.append)
    assert done == [4, 4, 2]
    assert len({location.shard for location in tokens.locations}) == 3


def test_random_crops_do_not_depend_on_processes_or_order(pictures, extracted):
    first = everything(extracted(pictures, folder="one", crops=2, workers=1))
    second = everything(extracted(pictures.subset(range(9, -1, -1)), folder="three", crops=2, workers=3))
    torch.testing.assert_close(first, second.flip(0))
    assert not torch.equal(first[:, 2], first[:, 3])


@pytest.mark.parametrize("executor", [Executor(workers=2), Executor(workers=2, ray="local", cpus=0.5)])
def test_several_processes_and_ray_write_the_tokens_of_one(pictures, extracted, executor):
    backbone = create_backbone("small_cnn")
    alone = everything(extracted(pictures.subset(range(9)), backbone, folder="alone"))
    pictures.images.paths[9].write_bytes(b"no picture")
    with pytest.warns(UserWarning, match="9.png"):
        # One batch a process, and so one shard, however slow the machine.
        together = extracted(pictures, backbone, executor=executor, broken="skip", batch_size=8)
    torch.testing.assert_close(everything(together), alone)
    assert len({location.shard for location in together.locations}) == 2


def test_damaged_tokens_are_found_and_computed_again(pictures, extracted, tmp_path):
    expected = everything(extracted(pictures, views=["centre"]))
    shard = next((tmp_path / "tokens").glob("*/*.bin"))
    content = bytearray(shard.read_bytes())
    content[33] ^= 4
    shard.write_bytes(content)
    backbone = Counting()
    with pytest.warns(UserWarning, match="damaged and computed again"):
        again = extracted(pictures, backbone, views=["centre"])
    assert backbone.seen == 11
    assert again.store.damaged() == []
    torch.testing.assert_close(everything(again), expected)


def test_what_does_not_fit_is_told_before_any_work(pictures, extracted, tmp_path, monkeypatch):
    backbone = Counting()
    with pytest.raises(ValueError, match=r"10 pictures x 2 views exceed --features.budget.*int8"):
        extracted(pictures, backbone, budget=1e-9)
    assert backbone.seen == 1
    (folder,) = (tmp_path / "tokens").iterdir()
    with lock(folder / ".lock", "taken"), pytest.raises(ValueError, match="another process"):
        extracted(pictures)
    monkeypatch.setattr(extract.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    with pytest.raises(ValueError, match="do not fit on the disk"):
        extracted(pictures)


def test_broken_pictures_are_named_and_all_others_computed(pictures, extracted):
    pictures.images.paths[2].write_bytes(b"no picture")
    pictures.images.paths[6].unlink()
    backbone, settings = Counting(), {"views": ["centre"]}
    with pytest.raises(ValueError, match=r"(?s)2 of 10 images cannot be read.*2.png.*6.png.*data.check skip"):
        extracted(pictures, backbone, **settings)
    with pytest.warns(UserWarning, match=r"(?s)without broken images: 2 of 10.*2.png.*6.png"):
        tokens = extracted(pictures, backbone, **settings, broken="skip")
    assert backbone.seen == 2 + 8
    sound = [0, 1, 3, 4, 5, 7, 8, 9]
    assert tokens.labels.tolist() == pictures.labels[sound].tolist()
    torch.testing.assert_close(everything(tokens), everything(extracted(pictures.subset(sound), backbone, **settings)))
    with pytest.raises(ValueError, match="2 of 2 images"):
        extracted(pictures.subset([2, 6]), broken="skip")


class Pooled(Counting):
    def forward(self, pixels):
        return pixels.mean((2, 3))


class Cropping(Counting):
    """The map depends on the content: that of a blank picture is larger."""

    def forward(self, pixels):
        return super().forward(pixels if len(pixels) == 1 else pixels[..., 8:])


@pytest.mark.parametrize(("backbone", "match"), [(Pooled, "no patch tokens"), (Cropping, "one size")])
def test_a_backbone_without_tokens_or_with_maps_of_several_sizes_is_refused(pictures, extracted, backbone, match):
    with pytest.raises(ValueError, match=match):
        extracted(pictures, backbone())


def _sum_of(tokens):
    assert tokens.memory is None
    assert tokens.open_shared()
    return float(tokens.memory.float().sum())


@pytest.mark.gpu
def test_processes_share_tokens_in_gpu_memory(pictures, extracted):
    tokens = extracted(pictures, device="cuda")
    expected = float(tokens.load("cuda").memory.float().sum())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_sum_of, (tokens,)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "match"),
    [({"views": []}, "views"), ({"crops": -1}, "crops"), ({"batch_size": 0}, "batch_size"), ({"budget": 0}, "budget")],
)
def test_wrong_settings_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        FeatureConfig(**options)
