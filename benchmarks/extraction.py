"""Images per second of `extract_tokens` against the bare forward pass of the backbone, at one batch size and precision.

    python benchmarks/extraction.py --backbone timm/resnet18 --out results/extraction_cpu.json               # 2 cores
    python benchmarks/extraction.py --backbone keras/resnet50 --size 227 --images 40000 --batch 256 --views centre \\
        --device cuda --source array --out results/extraction_h200.json                  # one H200, 10 GB, a minute

Weights are random, which changes no time. The bare forward pass runs on one batch that is on the device already;
extraction also decodes (JPEG files, or an array of pixels in memory), copies both ways and writes to ``--folder``. The
steady speed leaves out the first quarter of the pictures, and "start-up" is what they took longer than the others; this
needs some ten shards of 64 MB. The steady share of the bare speed is the goal: 95 %. Decoding and writing are timed
alone, too: the slowest of the three decides.
``--backbone free`` computes nothing, and so shows the most that the others can reach.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from gspool.bench.timing import keep_freed_pages
from gspool.data import ArrayImages, ImageSet
from gspool.data.image_source import FileImages, ImageSource
from gspool.features import FeatureConfig, extract_tokens
from gspool.features.extractor import WRITERS, Extractor, Picture
from gspool.features.store import DTYPES, TokenStore
from gspool.models import Backbone, Pixels, create_backbone
from gspool.provenance import write_result

DISTINCT = 64


class Free(Backbone):
    """64 tokens of 2048 numbers that cost nothing: what is left is the extraction itself."""

    def __init__(self) -> None:
        super().__init__(channels=2048, pixels=Pixels())

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return one channel of a few pixels as all channels."""
        step = -(-pixels.shape[-1] // 8)
        return pixels[:, :1, ::step, ::step].bfloat16().expand(-1, self.channels, -1, -1)


def pictures(source: str, count: int, side: int, folder: Path) -> ImageSet:
    """Return so many pictures: JPEG files of some distinct ones, or an array whose rows differ."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(DISTINCT, 3, 16, 16, generator=generator)
    pixels = (255 * torch.nn.functional.interpolate(coarse, size=side, mode="bicubic").clamp(0, 1)).to(torch.uint8)
    images: ImageSource
    if source == "array":
        rows = pixels[torch.arange(count) % DISTINCT].clone()
        rows[:, 0, 0, :4] = torch.arange(count).view(-1, 1).bitwise_right_shift(torch.arange(0, 32, 8)).to(torch.uint8)
        images = ArrayImages(rows)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{number}.jpg" for number in range(count)]
        for number, path in enumerate(paths):
            if number < DISTINCT:
                Image.fromarray(pixels[number].permute(1, 2, 0).numpy()).save(path, quality=90)
            else:
                shutil.copy(paths[number % DISTINCT], path)
        images = FileImages(paths)
    return ImageSet(images, torch.arange(count) % 2, ("a", "b"), name=source)


def bare(backbone: Backbone, config: FeatureConfig, device: str, batches: int) -> float:
    """Return images per second of the forward pass alone, on a batch that is on the device."""
    extractor = Extractor(backbone.eval(), (), config, device)
    extractor.start()
    images = torch.randint(256, (config.batch_size, 3, *backbone.pixels.crop), dtype=torch.uint8, device=device)
    clock = clock_of(device)
    for timed in (2, batches):
        _wait(device)
        started = clock()
        for _ in range(timed):
            extractor.features(images)
        _wait(device)
    return timed * config.batch_size / (clock() - started)


def clock_of(device: str) -> Callable[[], float]:
    """Return the clock: processor time of this process on a CPU, where other programs disturb less, else wall time."""
    return time.process_time if device == "cpu" else time.perf_counter


def measure(backbone: Backbone, images: ImageSet, config: FeatureConfig, device: str) -> dict[str, float]:
    """Return images per second of extraction into an empty folder, and its start-up; each view is an image."""
    shutil.rmtree(config.folder or "", ignore_errors=True)
    clock, views = clock_of(device), len(config.views)
    done = [(0, clock())]
    extract_tokens(
        backbone,
        [images],
        config,
        name="benchmark",
        device=device,
        advance=lambda count: done.append((done[-1][0] + count, clock())),
    )
    seconds = clock() - done[0][1]
    first, began = next((each for each in done[:-1] if each[0] >= len(images) // 4), done[0])
    steady = (len(images) - first) / (done[-1][1] - began)
    return {
        "extracted_images_per_second": views * len(images) / seconds,
        "steady_images_per_second": views * steady,
        "startup_seconds": seconds - len(images) / steady,
    }


def measure_parts(backbone: Backbone, images: ImageSet, config: FeatureConfig, device: str) -> dict[str, float]:
    """Return images per second of decoding alone and of writing alone, each in the way of the extraction."""
    clock, views = clock_of(device), len(config.views)
    extractor = Extractor(backbone.eval(), [images], config, device)
    layout = extractor.layout()
    began = clock()
    for _ in extractor.decoded([Picture(f"{row:024x}", 0, row) for row in range(len(images))]):
        pass
    decoded = views * len(images) / (clock() - began)
    shutil.rmtree(config.folder or "", ignore_errors=True)
    store = TokenStore(Path(config.folder or ""), layout)
    numbers = torch.zeros(layout.shard_pictures, *layout.shape, dtype=DTYPES[layout.precision])
    shards = 4 * WRITERS
    began = clock()
    with ThreadPoolExecutor(WRITERS) as disk:
        for shard in range(shards):
            disk.submit(store.write_encoded, [f"{shard}-{row}" for row in range(len(numbers))], [(numbers, None)])
    return {
        "decoded_images_per_second": decoded,
        "written_images_per_second": views * shards * len(numbers) / (clock() - began),
    }


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def main() -> None:
    """Measure both, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backbone", default="timm/resnet18")
    parser.add_argument("--size", type=int, default=224, help="side of the images")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--views", choices=("centre", "both"), default="both")
    parser.add_argument("--source", choices=("array", "files", "both"), default="both")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "gspool_extraction")
    chosen = parser.parse_args()
    keep_freed_pages()
    backbone = Free() if chosen.backbone == "free" else create_backbone(chosen.backbone)
    backbone.pixels = backbone.pixels.changed({"size": chosen.size, "resize": chosen.size * 8 // 7})
    config = FeatureConfig(
        views=["centre", "mirror"] if chosen.views == "both" else ["centre"],
        batch_size=chosen.batch,
        # The clock of a CPU does not count other processes.
        workers=1 if chosen.device == "cpu" else 0,
        folder=str(chosen.folder / "tokens"),
    )
    rows: list[dict[str, Any]] = []
    try:
        for source in ("array", "files") if chosen.source == "both" else (chosen.source,):
            images = pictures(source, chosen.images, chosen.size * 8 // 7, chosen.folder / "files")
            # Before and after: the machine may have become faster or slower meanwhile.
            batches = max(4, chosen.images // chosen.batch)
            speeds = [bare(backbone, config, chosen.device, batches)]
            found = measure(backbone, images, config, chosen.device)
            speeds.append(bare(backbone, config, chosen.device, batches))
            found |= measure_parts(backbone, images, config, chosen.device)
            share = 100 * found["steady_images_per_second"] * 2 / sum(speeds)
            rows.append(
                {"source": source, "bare_images_per_second": [round(speed, 1) for speed in speeds]}
                | {name: round(value, 1) for name, value in found.items()}
                | {"percent_of_bare": round(share, 1)}
            )
            print(rows[-1], flush=True)
    finally:
        shutil.rmtree(chosen.folder, ignore_errors=True)
    value = {
        "backbone": chosen.backbone,
        "size": chosen.size,
        "batch": chosen.batch,
        "images": chosen.images,
        "views": len(config.views),
        "clock": "processor time of all threads" if chosen.device == "cpu" else "wall clock",
        "rows": rows,
    }
    command = shlex.join(["python", "benchmarks/extraction.py", *sys.argv[1:]])
    write_result(chosen.out, value, command=command, seeds=[0], libraries=["timm"], device=chosen.device)


if __name__ == "__main__":
    main()
