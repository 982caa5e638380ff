"""What tokens in int8 cost: their error, and MAP@R of heads trained on them, against bfloat16 and float32.

    python benchmarks/feature_precision.py --root DATA --weights resnet50.safetensors \\
        --out results/feature_precision.json                       # 20 classes; one GPU, a minute

A few classes of CUB-200-2011 through a frozen backbone, once in float32; the tokens are then kept in every precision,
and heads are trained on each with the same seeds. Differences are MAP@R on test classes, in percent points.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from gspool import data
from gspool.evaluation.statistics import seed_difference
from gspool.features import FeatureConfig, TokenSet, TokenStore, extract_tokens
from gspool.models import create_backbone
from gspool.provenance import write_result
from gspool.training.compare import CompareConfig
from gspool.training.compare_data import Tokens
from gspool.training.compare_runs import Variant, asked_of, make_worker
from gspool.training.config import DataConfig, OptimiserConfig, TrainerConfig

PRECISIONS = ("fp32", "bf16", "fp16", "int8")
VARIANTS = {
    "gap": Variant("gap"),
    "gsp": Variant("gsp", (("mu", 0.1), ("epsilon", 10.0), ("prototypes", 64))),
}


def in_precision(tokens: TokenSet, precision: Any, folder: Path) -> TokenSet:
    """Return the same tokens, kept in another precision."""
    store = TokenStore(folder / precision, tokens.layout._replace(precision=precision))
    names = [f"{place:024d}" for place in range(len(tokens))]
    for places in torch.arange(len(tokens)).split(256):
        own = [tokens.locations[place] for place in places.tolist()]
        store.write([names[place] for place in places.tolist()], tokens.store.read(own).float())
    known = store.locations()
    return TokenSet(tokens.images, store, [known[name] for name in names])


def error_of(tokens: TokenSet, exact: TokenSet) -> float:
    """Return the root of the mean squared error of the tokens, relative to their size, in percent."""
    ours, theirs = (each.store.read(each.locations).float() for each in (tokens, exact))
    return float(100 * (ours - theirs).norm() / theirs.norm())


def main() -> None:
    """Measure every precision, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", required=True, help="the folder of CUB_200_2011, or the one above it")
    parser.add_argument("--backbone", default="keras/resnet50")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--classes", type=int, default=20, help="classes to learn from, and as many to test on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    backbone = create_backbone(chosen.backbone, weights=chosen.weights)
    sets = [data.create("cub", chosen.root, split).of_classes(range(chosen.classes)) for split in ("train", "test")]
    gpu = chosen.device.startswith("cuda")
    config = CompareConfig(
        data=DataConfig(name="cub", classes_per_batch=min(14, chosen.classes * 3 // 4 - 1), images_per_class=4),
        dim=128,
        optimiser=OptimiserConfig(lr=3e-4, weight_decay=0.0, betas=(0.9, 0.999), proxies=100.0),
        trainer=TrainerConfig(max_steps=chosen.steps, evaluate_every=25, patience=6, progress=False),
    )
    config.trainer = replace(config.trainer, accelerator="gpu" if gpu else "cpu")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = FeatureConfig(folder=folder, precision="fp32", compute="fp32", views=["centre"])
        exact = Tokens(*extract_tokens(backbone, sets, settings, name=chosen.backbone, device=chosen.device))
        found: dict[tuple[str, str], list[float]] = {}
        for precision in PRECISIONS:
            kept = Tokens(*(in_precision(each, precision, Path(folder) / each.images.split) for each in exact))
            work = make_worker(config, kept, chosen.device)
            for head, variant in VARIANTS.items():
                runs = [work(asked_of(head, variant, 0, seed), 0.0) for seed in range(chosen.seeds)]
                found[precision, head] = [run["test"]["map@r"] for run in runs if run is not None]
                pairs = zip(found[precision, head], found["fp32", head], strict=True)
                rows.append(
                    {
                        "precision": precision,
                        "head": head,
                        "bytes_per_number": round(
                            kept.test.layout.picture_bytes / exact.test.layout.picture_bytes * 4, 3
                        ),
                        "token_error_percent": round(error_of(kept.test, exact.test), 4),
                        "map@r": round(fmean(found[precision, head]), 3),
                        "against_fp32": seed_difference([ours - theirs for ours, theirs in pairs]),
                    }
                )
                print(rows[-1], flush=True)
    value = {"backbone": chosen.backbone, "classes": chosen.classes, "dim": 128, "rows": rows}
    command = shlex.join(["python", "benchmarks/feature_precision.py", *sys.argv[1:]])
    write_result(chosen.out, value, command=command, seeds=list(range(chosen.seeds)), device=chosen.device)


if __name__ == "__main__":
    main()
