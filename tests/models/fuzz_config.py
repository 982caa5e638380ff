"""Load models with mutated config.json files: `python fuzz_config.py COUNT SEED FOLDER` prints the outcomes as JSON.

Every outcome must be a model that embeds an image or one ValueError. An audit hook records what a hostile config could
reach: files outside the folder, the network, other programs.
"""

from __future__ import annotations

import json
import os
import random
import resource
import site
import sys
import time
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from gspool.models import Embedder

MODELS: list[dict[str, Any]] = [
    {"backbone": "small_cnn", "pooling": "gsp", "dim": 8, "backbone_options": {"width": 2}},
    {"backbone": "small_cnn", "pooling": "otp", "dim": 8, "backbone_options": {"width": 2}},
    {"backbone": "small_cnn", "pooling": "tfm", "dim": 8, "pooling_options": {"layers": 1, "heads": 2}},
    {"backbone": "resnet20", "pooling": "gemean", "dim": 8, "backbone_options": {"flavour": "postactivation"}},
    {
        "backbone": "timm/test_vit",
        "pooling": "gsp",
        "dim": 8,
        "backbone_options": {"img_size": 64, "dynamic_img_size": True},
        "pooling_options": {"prototypes": 4, "mu": 0.5, "warm_start": 4},
    },
    {"backbone": "timm/test_resnet", "pooling": "gap+gmp", "dim": 8, "backbone_options": {"drop_path_rate": 0.1}},
]
NAMES = [
    *("checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "weights", "pixels"),
    *("file", "url", "hf_hub_id", "in_chans", "num_classes", "features_only", "img_size", "depth", "depths", "layers"),
    *("embed_dim", "num_heads", "mlp_ratio", "window_size", "patch_size", "prototypes", "mu", "epsilon", "iterations"),
    *("warm_start", "role", "backend", "out_dim", "p", "k", "grid", "heads", "width", "flavour", "global_pool"),
    *("act_layer", "norm_layer", "__class__", "self", "dim", "freeze", "normalise", "pooling", "backbone", "gspool"),
    *("weights_sha256", "\u202e", "\x1b[31m"),
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 8, 64, 10**6, 10**9, 10**12, 10**400, -(10**18)),
    *(0.5, 1e-300, 1e300, -0.0, 1e999, float("nan")),
    *("", "gsp", "gap", "none", "all", "RGB", "64", "timm/resnet18", "timm/hf-hub:me/evil", "timm/local-dir:/tmp"),
    *("../../etc/passwd", "/etc/passwd", "https://127.0.0.1:9/evil.pth", "file:///etc/passwd"),
    *("\x1b[2J", "a\nb", "x" * 10_000),
    *([], [1], [1, 2], [64, 64], [10**9, 10**9], [[[[]]]], [0.5] * 3, [float("inf")] * 3, list(range(100))),
    *({}, {"a": 1}, {"url": "https://127.0.0.1:9/evil.pth", "file": "/etc/passwd"}, {"size": 10**6, "resize": 10**6}),
]


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the ways to every value inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(place for key, each in inside for place in places(each, (*way, key)))]


def mutate(config: dict[str, Any], draw: random.Random) -> bytes:
    """Change one to three things of a config: a value, a key, or the bytes themselves."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        *way, last = draw.choice(places(config)[1:])
        inside = config
        for key in way:
            inside = inside[key]
        kind = draw.choice(("value", "value", "nudge", "nudge", "delete", "add", "add"))
        if kind == "nudge" and isinstance(inside[last], int | float) and abs(inside[last]) < 1e300:
            inside[last] = inside[last] * draw.choice((-1, 0.5, 2, 1.0, 10**3))
        elif kind == "delete":
            del inside[last]
            if not places(config)[1:]:
                break
        elif kind == "add":
            target = draw.choice([config, config.get("backbone_options"), config.get("pooling_options")])
            if isinstance(target, dict):
                target[draw.choice(NAMES)] = deepcopy(draw.choice(VALUES))
        else:
            inside[last] = deepcopy(draw.choice(VALUES))
    text = json.dumps(config).encode()
    kind = draw.randrange(40)
    if kind == 0:
        position = draw.randrange(len(text))
        text = text[:position] + bytes(draw.randrange(256) for _ in range(draw.randrange(4))) + text[position + 1 :]
    elif kind == 1:
        text = text[: draw.randrange(len(text))]
    elif kind == 2:
        depth = draw.choice((10, 1_000, 100_000))
        text = text[:-1] + b', "freeze": ' + b"[" * depth + b"]" * depth + b"}"
    elif kind == 3:
        text = text[:-1] + b', "dim": 8}'
    return text


def outcome_of(folder: Path) -> str:
    """Load the model and embed one image; anything but a ValueError of one line is a fault."""
    try:
        model = Embedder.from_pretrained(folder)
        height, width = (min(side, 64) for side in model.pixels.crop)
        image = torch.randint(256, (1, 3, height, width), dtype=torch.uint8)
        with torch.no_grad():
            vector = model(image if model.settings.normalise else image / 255)
    except ValueError as error:
        return "refused" if "\x1b" not in str(error) and len(str(error)) < 2_500 else f"long or unprintable: {error!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    # A network may answer an image with zeros alone, which have no direction.
    right = bool(vector.isfinite().all()) and float(vector.norm()) < 1 + 1e-3
    return "works" if right else f"a vector of length {vector.norm()}"


def main(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Fuzz, and return what happened."""
    torch.manual_seed(0)
    folders = []
    for number, settings in enumerate(MODELS):
        folders.append(folder / str(number))
        Embedder(**settings).save_pretrained(folders[-1])
        assert outcome_of(folders[-1]) == "works"
    configs = [(each / "config.json").read_text() for each in folders]
    reached: Counter[str] = Counter()
    readable = (
        str(folder),
        *site.getsitepackages(),
        sys.prefix,
        sys.base_prefix,
        *filter(None, sys.path),
        "/proc",
        "/sys",
    )

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            path, writes = os.fsdecode(arguments[0]), bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            allowed = (str(folder),) if writes and not path.endswith(".pyc") and "__pycache__" not in path else readable
            if not os.path.abspath(path).startswith(allowed):
                reached[f"{'write' if writes else 'read'} {path}"] += 1
        elif event.partition(".")[0] in ("socket", "subprocess", "shutil") or event in (
            "os.system",
            "os.exec",
            "exec_",
        ):
            reached[event] += 1

    sys.addaudithook(record)
    draw, outcomes, started = random.Random(seed), Counter(), time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest = 0.0
    for _ in range(count):
        number = draw.randrange(len(folders))
        text = mutate(json.loads(configs[number]), draw)
        (folders[number] / "config.json").write_bytes(text)
        began = time.monotonic()
        outcome = outcome_of(folders[number])
        slowest = max(slowest, time.monotonic() - began)
        outcomes[outcome] += 1
        if outcome not in ("works", "refused"):
            print(f"{MODELS[number]}\n{text[:2000]!r}\n{outcome[:1000]}\n", file=sys.stderr)
    return {
        "configs": count,
        "outcomes": dict(outcomes),
        "reached": dict(reached),
        "memory_growth_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024,
        "slowest_seconds": round(slowest, 2),
        "seconds": round(time.monotonic() - started, 1),
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
