"""`pip install gspool` brings torch and nothing else of weight, so the package must import with torch alone."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

# Refuses what gspool's own modules import, loaded before or not, if it is neither torch (with its triton) nor Python's
# own. What torch imports is torch's affair: it looks for numpy, and goes on without.
GUARD = """
import builtins, sys
import torch

allowed = {"torch", "triton", "gspool", *sys.stdlib_module_names}
usual = builtins.__import__

def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    asker = (globals or {}).get("__name__", "")
    if level == 0 and asker.partition(".")[0] == "gspool" and name.partition(".")[0] not in allowed:
        raise ModuleNotFoundError(f"{asker} asks for {name}, which pip install gspool does not bring", name=name)
    return usual(name, globals, locals, fromlist, level)

builtins.__import__ = guarded
"""
USE = """
import gspool
from gspool import GSP, ZSRLoss, functional, pooling

pool = GSP(dim=8, prototypes=4, learn_mu=True, warm_start=4)
pooled, weights, attributes = pool.pool(torch.randn(4, 8, 3, 3))
loss = pooled.sum() + ZSRLoss(num_classes=4, dim=8)(attributes, torch.tensor([0, 1, 2, 3]))
loss.backward()
timms = {"avgmax", "catavgmax", "attention", "simpool", "lse", "map", "clip"}
for name in pooling.list():
    pooling.registry.layer_class(name)
    if name not in timms:
        pooling.create_embedding(name, dim=16, out_dim=128)
functional.hard_selection(torch.rand(2, 3, 5), mu=0.3)
print("fine")
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", GUARD + body]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_the_layer_and_the_loss_work_with_torch_alone() -> None:
    outcome = run(USE)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.strip() == "fine"


def test_the_guard_of_this_test_would_notice() -> None:
    outcome = run("import gspool.terminal.parser")
    assert outcome.returncode != 0
    assert "gspool.terminal.parser asks for jsonargparse" in outcome.stderr


def test_a_layer_of_timm_says_what_to_install() -> None:
    outcome = run("from gspool import pooling\npooling.create('avgmax', dim=8)")
    assert 'pip install "gspool[train]"' in outcome.stderr


def test_the_cost_of_a_layer_is_measured_with_torch_alone() -> None:
    words = ["bench", "--layers", "gmp", "gsp", "--batch", "2", "--channels", "8", "--size", "3", "--repeats", "1"]
    outcome = run(f"from gspool.cli import main\nsys.exit(main({words}))")
    assert outcome.returncode == 0, outcome.stderr
    assert "gsp instead of gap" in outcome.stdout


def test_a_backbone_in_front_of_the_layers_says_what_to_install() -> None:
    outcome = run("from gspool.cli import main\nsys.exit(main(['bench', '--model', 'resnet20']))")
    assert outcome.returncode == 1
    assert "pip install 'gspool[train]'" in outcome.stderr


def test_every_other_command_says_what_to_install() -> None:
    body = """
from gspool.cli import COMMANDS, main
words = {"reproduce": ["tokens"], "report": [], "train": []}
for name in COMMANDS:
    if name != "bench":
        print(name, main([name, *words.get(name, ["model", "pictures", "--out", "v.npz"])]), COMMANDS[name].extra)
"""
    outcome = run(body)
    assert outcome.returncode == 0, outcome.stderr
    told = outcome.stderr.splitlines()
    assert len(told) == len(outcome.stdout.splitlines()) == 10
    for line, answer in zip(told, outcome.stdout.splitlines(), strict=True):
        name, status, extra = answer.split()
        assert status == "1"
        assert line.startswith(f"gspool {name} needs ")
        assert line.endswith(f": pip install 'gspool[{extra}]'")


def test_torch_is_the_only_dependency() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert [each.partition(">")[0] for each in project["dependencies"]] == ["torch"]
