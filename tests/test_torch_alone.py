"""`pip install gspool` brings torch and nothing else of weight, so the package must import with torch alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
import gspool, gspool.losses
from gspool import GSP, ZSRLoss, functional, pooling

assert "torch._dynamo" not in sys.modules  # the compiler takes seconds to import
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
"""
BENCH = ["bench", "--layers", "gmp", "gsp", "--batch", "2", "--channels", "8", "--size", "3", "--repeats", "1"]
COMMANDS = """
from gspool.cli import COMMANDS, main
words = {"reproduce": ["tokens"], "report": [], "train": []}
for name in COMMANDS:
    if name != "bench":
        print(name, main([name, *words.get(name, ["model", "pictures", "--out", "v.npz"])]), COMMANDS[name].extra)
"""
PROGRAMS = {
    "use": USE,
    "foreign import": "import gspool.terminal.parser",
    "layer of timm": "from gspool import pooling\npooling.create('avgmax', dim=8)",
    "bench": f"from gspool.cli import main\nsys.exit(main({BENCH}))",
    "bench of a backbone": "from gspool.cli import main\nsys.exit(main(['bench', '--model', 'resnet20']))",
    "commands": COMMANDS,
}
RUN_ALL = """
import contextlib, io, json, traceback

outcomes = {}
for name, program in programs.items():
    out, error, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            exec(program, {"sys": sys, "torch": torch})
        except SystemExit as end:
            status = end.code
        except Exception:
            traceback.print_exc()
            status = 1
    outcomes[name] = (status, out.getvalue(), error.getvalue())
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[int, str, str]]:
    """Run every program in one guarded process; return status, output and errors of each."""
    command = [sys.executable, "-c", f"{GUARD}\nprograms = {PROGRAMS!r}\n{RUN_ALL}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_the_layer_and_the_loss_work_with_torch_alone(outcomes) -> None:
    assert outcomes["use"] == [0, "", ""]


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("foreign import", "gspool.terminal.parser asks for jsonargparse"),
        ("layer of timm", 'pip install "gspool[train]"'),
        ("bench of a backbone", "pip install 'gspool[train]'"),
    ],
)
def test_what_needs_more_says_what_to_install(outcomes, program: str, told: str) -> None:
    status, _, error = outcomes[program]
    assert status == 1
    assert told in error


def test_the_cost_of_a_layer_is_measured_with_torch_alone(outcomes) -> None:
    status, out, error = outcomes["bench"]
    assert status == 0, error
    assert "gsp instead of gap" in out


def test_every_other_command_says_what_to_install(outcomes) -> None:
    status, out, error = outcomes["commands"]
    assert status == 0, error
    assert len(error.splitlines()) == len(out.splitlines()) == 10
    for line, answer in zip(error.splitlines(), out.splitlines(), strict=True):
        name, status, extra = answer.split()
        assert status == "1"
        assert line.startswith(f"gspool {name} needs ")
        assert line.endswith(f": pip install 'gspool[{extra}]'")


def test_torch_is_the_only_dependency() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert [each.partition(">")[0] for each in project["dependencies"]] == ["torch"]
