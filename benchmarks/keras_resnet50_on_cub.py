"""Check the Keras variant of ResNet50 with its ImageNet weights by retrieval on CUB.

Frozen ImageNet features, averaged over the map (2048-D, cosine), of the 5,924 test images of CUB-200-2011 (classes 101
to 200). A network with a wrong stride, constant or channel order still runs but retrieves far worse; `--stock` shows
how much, with the same weights in timm's unchanged ResNet50 and its usual preprocessing.

    python benchmarks/keras_resnet50_on_cub.py --data DATA --weights WEIGHTS --out results/keras_resnet50_on_cub.json

One CPU core, about 20 minutes, twice that with `--stock`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import gspool.version
from gspool.evaluation import retrieval_metrics
from gspool.models import Backbone, create_backbone
from gspool.models.pixels import PixelNormalisation

FIRST_TEST_CLASS = 101


class TestBirds(Dataset):
    """Images and classes of the metric-learning test half, from the official layout."""

    def __init__(self, root: Path, transform, every: int) -> None:
        labels = dict(line.split() for line in (root / "image_class_labels.txt").read_text().splitlines())
        rows = [line.split() for line in (root / "images.txt").read_text().splitlines()]
        birds = [(root / "images" / name, int(labels[number])) for number, name in rows]
        self.birds = [bird for bird in birds if bird[1] >= FIRST_TEST_CLASS][::every]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.birds)

    def __getitem__(self, index: int):
        path, label = self.birds[index]
        with Image.open(path) as picture:
            return self.transform(picture), label


@torch.inference_mode()
def average_pooled(backbone: Backbone, birds: TestBirds, device: str):
    """Average the feature maps over the image."""
    normalise = PixelNormalisation(backbone.pixels).to(device)
    backbone = backbone.to(device).eval()
    features, labels = [], []
    for done, (images, classes) in enumerate(DataLoader(birds, batch_size=8)):
        features.append(backbone(normalise(images.to(device))).mean(dim=(2, 3)).cpu())
        labels.append(classes)
        if done % 80 == 0:
            print(f"{done * 8} of {len(birds)} images", flush=True)
    return torch.cat(features), torch.cat(labels)


def measure(backbone: Backbone, arguments: argparse.Namespace) -> dict[str, float | int]:
    birds = TestBirds(arguments.data / "CUB_200_2011", backbone.pixels.transform(), arguments.every)
    began = time.perf_counter()
    features, labels = average_pooled(backbone, birds, arguments.device)
    seconds = time.perf_counter() - began
    return {**retrieval_metrics(features, labels, distance="cosine").as_dict(), "seconds": round(seconds, 1)}


def commit() -> str:
    """Return the commit, and whether the tree differs from it."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return "before the first commit"
    changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    return head.stdout.strip() + (" with changes" if changed else "")


def processor() -> str:
    """Return the name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    names = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":")[1].strip() for line in names if line.startswith("model name")), platform.processor())


def write(values: dict[str, dict[str, float | int]], arguments: argparse.Namespace) -> None:
    """Write the figures with their provenance."""
    flags = (f" --every {arguments.every}" if arguments.every > 1 else "") + (" --stock" if arguments.stock else "")
    on_gpu = arguments.device.startswith("cuda")
    record = {
        "what": "frozen average-pooled features, cosine, CUB-200-2011 classes 101-200",
        "values": values,
        "command": f"python benchmarks/keras_resnet50_on_cub.py --data DATA --weights WEIGHTS --out OUT{flags}",
        "weights_sha256": hashlib.sha256(arguments.weights.read_bytes()).hexdigest(),
        "seeds": "none: nothing is drawn",
        "commit": commit(),
        "device": torch.cuda.get_device_name() if on_gpu else f"{processor()}, {torch.get_num_threads()} thread(s)",
        "versions": {
            "gspool": gspool.version.__version__,
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "python": platform.python_version(),
        },
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    aside = arguments.out.with_suffix(".part")
    aside.write_text(json.dumps(record, indent=2) + "\n")
    aside.replace(arguments.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds CUB_200_2011")
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet weights of Keras, torchvision's names")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--every", type=int, default=1, help="use every n-th image only, for a quick check")
    parser.add_argument(
        "--stock", action="store_true", help="measure the same weights in an unchanged ResNet50 as well"
    )
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()

    names = ["keras/resnet50", *(["timm/resnet50"] if arguments.stock else [])]
    values = {}
    for name in names:
        values[name] = measure(create_backbone(name, weights=arguments.weights), arguments)
        print(name, json.dumps(values[name], indent=2), flush=True)
        # After each one, so that an interruption keeps finished measurements.
        write(values, arguments)
