from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import h5py
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from torchvision.models import resnet50

from gspool.models import create_backbone
from gspool.models.keras_weights import expected_shapes, main, units


def write_keras(path: Path, tensors: dict[str, Tensor]) -> Path:
    """Write ``layer/part`` as Keras 2 does: a group a layer, in it the variables under their full names."""
    with h5py.File(path, "w") as file:
        for name, value in tensors.items():
            file[f"{name.partition('/')[0]}/{name}:0"] = value.numpy()
        file.create_group("conv1_relu")  # a layer without variables has a group nevertheless
        file.attrs["layer_names"] = [name.encode() for name in file]
    return path


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    """Random tensors of Keras' ResNet50, biases of convolutions among them."""
    generator = torch.Generator().manual_seed(0)
    values = {}
    for name, shape in expected_shapes().items():
        if name.endswith("kernel"):
            values[name] = torch.randn(shape, generator=generator) * (2 / (shape[0] * shape[1] * shape[2])) ** 0.5
        elif name.endswith(("moving_variance", "gamma")):
            values[name] = 0.5 + torch.rand(shape, generator=generator)
        else:
            values[name] = torch.randn(shape, generator=generator)
    return values


@pytest.fixture(scope="module")
def published(tensors: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with its classifier."""
    classifier = {"probs/kernel": torch.zeros(2048, 1000), "probs/bias": torch.zeros(1000)}
    return write_keras(tmp_path_factory.mktemp("keras") / "resnet50.h5", tensors | classifier)


def keras_resnet50(x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """Compute in float64 what Keras builds, from its own tensors: biases kept, kernels HWIO, padding written out."""
    values = {name: value.double() for name, value in tensors.items()}

    def unit(name: str, x: Tensor, stride: int = 1) -> Tensor:
        kernel, bias = values[f"{name}_conv/kernel"], values[f"{name}_conv/bias"]
        x = torch.einsum("bcyxhw,hwcd->bdyx", patches(x, kernel.shape[0], stride), kernel) + bias[:, None, None]
        gamma, beta, mean, variance = (
            values[f"{name}_bn/{part}"][:, None, None] for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        return gamma * (x - mean) / torch.sqrt(variance + 1.001e-5) + beta

    def patches(x: Tensor, size: int, stride: int) -> Tensor:
        return F.pad(x, [size // 2] * 4).unfold(2, size, stride).unfold(3, size, stride)

    x = patches(unit("conv1", x.double(), stride=2).relu(), 3, 2).amax(dim=(-2, -1))
    for stage, blocks in ((2, 3), (3, 4), (4, 6), (5, 3)):
        for block in range(1, blocks + 1):
            name, stride = f"conv{stage}_block{block}", 2 if stage > 2 and block == 1 else 1
            y = unit(f"{name}_1", x, stride).relu()
            y = unit(f"{name}_3", unit(f"{name}_2", y).relu())
            x = ((unit(f"{name}_0", x, stride) if block == 1 else x) + y).relu()
    return x


def test_a_converted_file_computes_what_keras_does_with_biases(
    published: Path, tensors: dict[str, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "weights.safetensors"
    main([str(published), str(target)])
    assert f"wrote {target}, 94 MB" in capsys.readouterr().out
    assert {value.dtype for value in load_file(target).values()} == {torch.float32}
    backbone = create_backbone("keras/resnet50", weights=target).eval()
    for size in ((65, 49), (64, 64)):
        pixels = 100 * torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            features = backbone(pixels)
        expected = keras_resnet50(pixels, tensors)
        assert (features - expected).abs().max() < 1e-5 * expected.max()


def test_half_writes_the_convolutions_alone_in_float16(
    published: Path, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    main([str(published), str(tmp_path / "half.safetensors"), "--half"])
    weights = load_file(tmp_path / "half.safetensors")
    assert {name for name, value in weights.items() if value.dtype == torch.float16} == {
        f"{convolution}.weight" for convolution, _ in units().values()
    }
    assert torch.equal(weights["layer1.0.conv2.weight"][5, 7], tensors["conv2_block1_2_conv/kernel"][:, :, 7, 5].half())
    create_backbone("keras/resnet50", weights=tmp_path / "half.safetensors")


def test_every_missing_and_foreign_layer_is_noticed(published: Path, tmp_path: Path) -> None:
    shutil.copy(published, tmp_path / "changed.h5")
    with h5py.File(tmp_path / "changed.h5", "a") as file:
        del file["conv3_block2_1_bn"], file["conv1_conv/conv1_conv/bias:0"]
        file["conv1_conv/conv1_conv/bias:0"] = torch.zeros(1).numpy()
        file["conv4_block7_1_conv/conv4_block7_1_conv/bias:0"] = torch.zeros(256).numpy()
    target = tmp_path / "weights.safetensors"
    told = r"5 missing \(conv1_conv/bias \(64,\); conv3_block2_1_bn/beta \(128,\);.*, 2 left over \(conv1_conv"
    with pytest.raises(ValueError, match=told):
        main([str(tmp_path / "changed.h5"), str(target)])
    assert not target.exists()


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["res2a_branch2a/res2a_branch2a_W_1:0"], "from before 2019.*expected file is resnet50.*md5 4d47"),
        (["layers/conv2d/vars/0", "layers/batch_normalization/vars/0"], r"a \.weights\.h5 file of Keras 3.*expected"),
        (["cells"], r"318 missing \(conv1_bn/beta .*, 1 left over \(cells/ \(2,\)\)"),
    ],
)
def test_a_foreign_file_is_told_from_the_published_one(names: list[str], told: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["title"] = "not numbers"
        for name in names:
            file[name] = [0.5, 1.5]
    with pytest.raises(ValueError, match=told):
        main([str(tmp_path / "a.h5"), str(tmp_path / "a.safetensors")])


def test_a_download_that_was_cut_short_is_told(published: Path, tmp_path: Path) -> None:
    with published.open("rb") as file:
        (tmp_path / "cut.h5").write_bytes(file.read(100_000))
    with pytest.raises(ValueError, match=r"cut\.h5 is not HDF5, or its download is incomplete"):
        main([str(tmp_path / "cut.h5"), str(tmp_path / "a.safetensors")])
    with pytest.raises(ValueError, match=r"got .*a\.pth.*NAME\.safetensors"):
        main([str(published), str(tmp_path / "a.pth")])


def test_without_h5py_it_says_what_to_install(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"pip install 'gspool\[keras\]'"):
        main([str(published), "a.safetensors"])


def test_the_command_tells_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "gspool.models.keras_weights")
    monkeypatch.setattr(sys, "argv", ["keras_weights", "absent.h5", "a.safetensors"])
    with pytest.raises(SystemExit, match="1"):
        runpy.run_module("gspool.models.keras_weights", run_name="__main__")
    error = capsys.readouterr().err
    assert error.startswith("python -m gspool.models.keras_weights: there is no file absent.h5")
    assert error.count("\n") == 1


def test_its_weights_fit_torchvision_and_mean_something_else_there() -> None:
    torch.manual_seed(0)
    backbone, stock = create_backbone("keras/resnet50").eval(), resnet50().eval()
    told = stock.load_state_dict(backbone.state_dict(), strict=False)
    assert (set(told.missing_keys), told.unexpected_keys) == ({"fc.weight", "fc.bias"}, [])
    trunk = torch.nn.Sequential(*list(stock.children())[:-2])
    pixels = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        ours, theirs = backbone(pixels), trunk(pixels)
    assert ours.shape == theirs.shape
    assert (ours - theirs).norm() > 0.1 * ours.norm()
