from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from gspool.data.decode import open_image
from gspool.models import Pixels
from gspool.models.pixels import PixelNormalisation, check_images

CAFFE = Pixels(mean=(104, 117, 128), std=(1, 2, 4), channel_order="BGR", range="0-255", size=20, resize=24)
USUAL = Pixels(size=20, resize=24)


def pixel_by_pixel(images: torch.Tensor, pixels: Pixels) -> np.ndarray:
    """The definition, one number at a time, for images in [0, 1]."""
    white = 255.0 if pixels.range == "0-255" else 1.0
    out = np.zeros(images.shape)
    for b, c, i, j in np.ndindex(*images.shape):
        source = "RGB".index(pixels.channel_order[c])
        out[b, c, i, j] = (white * float(images[b, source, i, j]) - pixels.mean[c]) / pixels.std[c]
    return out


@pytest.mark.parametrize("pixels", [CAFFE, USUAL], ids=["caffe", "usual"])
def test_normalisation_is_its_definition(pixels: Pixels) -> None:
    images = torch.rand(2, 3, 5, 7, dtype=torch.float64)
    out = PixelNormalisation(pixels).double()(images)
    np.testing.assert_allclose(out.numpy(), pixel_by_pixel(images, pixels), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("pixels", [CAFFE, USUAL], ids=["caffe", "usual"])
def test_bytes_and_fractions_of_one_image_are_the_same_pixels(pixels: Pixels) -> None:
    images = torch.randint(256, (2, 3, 4, 4), dtype=torch.uint8)
    normalise = PixelNormalisation(pixels)
    torch.testing.assert_close(normalise(images), normalise(images.float() / 255), rtol=1e-5, atol=1e-4)


def test_pixels_come_in_the_precision_of_the_model_and_add_no_keys() -> None:
    normalise = PixelNormalisation(USUAL)
    assert not normalise.state_dict()
    assert normalise.bfloat16()(torch.rand(1, 3, 2, 2)).dtype == torch.bfloat16


def test_evaluation_transform_resizes_the_shorter_side_and_crops_the_middle() -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 96, 3), dtype=np.uint8))
    resized = picture.resize((48, 24), Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((14, 2, 34, 22))).transpose(2, 0, 1)
    image = USUAL.transform()(picture)
    assert image.dtype == torch.uint8
    np.testing.assert_array_equal(image.numpy(), expected)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_pictures_of_any_mode_become_rgb(mode: str) -> None:
    picture = Image.new("RGB", (30, 40), (200, 200, 200)).convert(mode)
    image = USUAL.transform()(picture)
    assert image.shape == (3, 20, 20)
    # Black and white dithers the grey, a palette has its nearest colour, the others keep it.
    assert (image.float().mean() - 200).abs() <= {"1": 12, "P": 5}.get(mode, 1)


@pytest.mark.parametrize("kind", ["on its side", "transparent", "deep"])
def test_a_picture_is_converted_as_files_are(tmp_path, kind: str) -> None:
    rng, path, exif = np.random.default_rng(0), tmp_path / "a.png", Image.Exif()
    channels = {"on its side": 3, "transparent": 4}
    if kind == "deep":
        picture = Image.fromarray(rng.integers(0, 65536, (30, 40), dtype=np.uint16))
    else:
        picture = Image.fromarray(rng.integers(0, 256, (30, 40, channels[kind]), dtype=np.uint8))
    if kind == "on its side":
        exif[0x0112] = 6
    picture.save(path, exif=exif)
    with Image.open(path) as opened:
        image = USUAL.transform()(opened)
        assert opened.size == (40, 30)  # the picture of the caller stays as it is
    assert torch.equal(image, USUAL.transform()(open_image(path)))


def test_transform_with_normalisation_gives_what_the_backbone_expects_and_can_be_pickled() -> None:
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 30, 3), dtype=np.uint8))
    transform = pickle.loads(pickle.dumps(CAFFE.transform(normalise=True)))
    expected = PixelNormalisation(CAFFE)(CAFFE.transform()(picture)[None])[0]
    torch.testing.assert_close(transform(picture), expected)


def test_height_and_width_may_differ() -> None:
    tall = Pixels(size=(40, 20), resize=40)
    assert tall.transform()(Image.new("RGB", (100, 100))).shape == (3, 40, 20)


def test_settings_survive_json_lists() -> None:
    assert Pixels(**CAFFE.as_dict()) == CAFFE
    assert Pixels(**Pixels(size=(40, 20), resize=40).as_dict()).crop == (40, 20)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mean": (0.5, 0.5)}, "three in all"),
        ({"std": (1.0, 0.0, 1.0)}, "must be positive"),
        ({"channel_order": "GBR"}, "RGB, BGR"),
        ({"range": "0-1000"}, "0-1, 0-255"),
        ({"interpolation": "nearest"}, "bilinear, bicubic"),
        ({"size": 0}, "must be positive"),
        ({"size": (1, 2, 3)}, "must be positive"),
        ({"resize": 25.5}, "must be positive"),
        ({"size": 256, "resize": 224}, "does not fit"),
        ({"colour": "RGB"}, "no field 'colour'; its fields are mean, std, channel_order"),
    ],
)
def test_wrong_settings_are_refused_in_words(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Pixels().changed(settings)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([1, 2, 3], "got list; turn PIL images"),
        (torch.zeros(3, 8, 8), r"add the batch axis with images\[None\]"),
        (torch.zeros(8, 8), "must be a batch"),
        (torch.zeros(1, 8, 8, 3), "channels seem to be last"),
        (torch.zeros(1, 1, 8, 8), "repeat the grey channel"),
        (torch.zeros(1, 4, 8, 8), "the 3 channels of RGB"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.int64), "uint8 .* or floating point"),
        (torch.zeros(0, 3, 8, 8), "nothing to embed"),
        (torch.full((1, 3, 2, 2), 255.0), "from 255 to 255"),
        (torch.full((1, 3, 2, 2), -2.0), "from -2 to -2"),
        (torch.full((1, 3, 2, 2), float("nan")), "must lie in"),
    ],
)
def test_what_is_no_batch_of_images_is_refused_in_words(images: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_images(images)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_images_of_every_usual_type_pass(dtype: torch.dtype) -> None:
    images = torch.ones(1, 3, 4, 4, dtype=dtype)
    check_images(images)
    assert PixelNormalisation(USUAL)(images).dtype == torch.float32
