"""Two processes that share a batch give the gradient of one process that has all of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import torch

from gspool.training import fit
from gspool.training.build import build_loss, build_model
from gspool.training.gather import gather_blocks, gather_rows
from gspool.training.gpu_data import TensorSet
from gspool.training.metric_learning import MetricLearning
from gspool.training.stream import Batch
from training.tiny_run import tiny

# Runs in each of two processes: half of the classes each, the loss of the whole batch, DDP's average of gradients.
WORKER = """
import sys, torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
sys.path.insert(0, sys.argv[1])
from training.test_distributed import LOSSES, STEPS, gradients_of, whole_batch, ragged_block, training
from gspool.training.embed import embed_images
from gspool.training.gather import gather_blocks
from gspool.training.stream import Batch
from gspool import data

torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=2)
rank = distributed.get_rank()
batch = Batch(*(part.chunk(2)[rank] for part in whole_batch()))

class Step(torch.nn.Module):
    def __init__(self, task):
        super().__init__()
        self.module, self.task = task.module, task
    def forward(self, batch):
        return self.task.loss(batch, 0).total

gradients = {}
for loss in LOSSES:
    task = training(loss)
    ddp = DistributedDataParallel(Step(task))
    for _ in range(STEPS):
        task.module.zero_grad()
        ddp(batch).backward()
    gradients[loss] = gradients_of(task.module)
    del ddp
images = data.create("glyphs", split="test", images_per_class=1, size=16)
embedded = embed_images(task.model, images, batch_size=16)
if rank == 0:
    joined = gather_blocks(ragged_block(0))
    torch.save({"gradients": gradients, "joined": joined, "embedded": embedded.embeddings}, sys.argv[4])
else:
    gather_blocks(ragged_block(1))
# Both leave together, and nothing of DDP outlives the group: a process that goes early ends the other's threads.
distributed.barrier()
distributed.destroy_process_group()
"""


LOSSES = ("c1", "c2", "triplet", "ms", "pnca", "panchor", "xbm+c1")
# The second step is compared: by then the memory of XBM holds the first batch of both processes.
STEPS = 2


def whole_batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (16, 3, 16, 16), dtype=torch.uint8, generator=generator)
    return Batch(images, torch.arange(8).repeat_interleave(2), torch.arange(16))


def ragged_block(rank: int) -> torch.Tensor:
    return torch.arange(3.0) if rank == 0 else torch.arange(3.0, 8.0)


def training(loss: str) -> MetricLearning:
    """Make the same task in every process; frozen batch norm, since its statistics are those of a process."""
    config = tiny()
    config.loss.name, config.loss.zsr, config.model.freeze = loss, 0.3, "batchnorm"
    config.loss.options = {"start": 1} if loss.startswith("xbm+") else {}
    model = build_model(config)
    task = MetricLearning(
        model,
        build_loss(config.loss, 10, model.out_dim, 16, seed=0),
        config,
        TensorSet.of(torch.zeros(16, 3, 16, 16, dtype=torch.uint8), torch.arange(8).repeat_interleave(2)),
    )
    task.module.train().double()
    return task


def gradients_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.grad for name, each in module.named_parameters() if each.grad is not None}


def two_processes(tmp_path) -> dict:
    folder = str(Path(__file__).parents[1])
    (tmp_path / "worker.py").write_text(textwrap.dedent(WORKER))
    out, meeting = tmp_path / "out.pt", tmp_path / "meeting"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "worker.py"), folder, str(meeting), str(rank), str(out)],
            env=environment,
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=200) for process in processes] == [0, 0]
    return torch.load(out, weights_only=True)


def test_two_processes_give_the_gradient_of_one_and_evaluate_without_duplicates(tmp_path):
    shared = two_processes(tmp_path)
    for loss in LOSSES:
        task = training(loss)
        for _ in range(STEPS):
            task.module.zero_grad()
            task.loss(whole_batch(), 0).total.backward()
        alone, together = gradients_of(task.module), shared["gradients"][loss]
        assert set(together) == set(alone)
        assert any(name.startswith("loss.zsr") for name in alone)
        assert any(name.startswith("loss.metric") for name in alone) == (loss in ("pnca", "panchor"))
        for name, gradient in alone.items():
            torch.testing.assert_close(together[name], gradient, rtol=1e-9, atol=1e-12, msg=f"{loss}: {name}")
    torch.testing.assert_close(shared["joined"], torch.arange(8.0))

    from gspool import data
    from gspool.training import embed_images

    images = data.create("glyphs", split="test", images_per_class=1, size=16)
    expected = embed_images(task.model, images, batch_size=16).embeddings
    torch.testing.assert_close(shared["embedded"], expected)


def test_alone_gathering_is_nothing():
    rows = torch.rand(3, 2, requires_grad=True)
    assert gather_rows(rows) is rows
    torch.testing.assert_close(gather_blocks(rows), rows)


def test_a_run_on_two_processes_is_the_run_of_one(tmp_path):
    config = tiny(max_steps=4, evaluate_every=2)
    config.model.freeze = "batchnorm"
    config.loss.zsr = 0.2
    config.baseline, config.output.report = "gap", True
    one = fit(config, tmp_path / "one")
    config.trainer.devices = 2
    config.output.folder = str(tmp_path / "two")
    from gspool.training.parsing import as_yaml

    (tmp_path / "two.yaml").write_text(as_yaml(config))
    command = [sys.executable, "-m", "gspool.cli", "train", "--config", str(tmp_path / "two.yaml")]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=250)
    from gspool import Embedder
    from gspool.training.run_folder import read_result

    two = read_result(tmp_path / "two")
    assert read_result(tmp_path / "two" / "baseline-gap")["steps"] == one.steps
    assert "gap" in (tmp_path / "two" / "report.html").read_text()
    assert (tmp_path / "two" / "log.txt").read_text().count("from step 0") == 1
    assert (two["steps"], two["best_step"]) == (one.steps, one.best_step)
    there = Embedder.from_pretrained(tmp_path / "two" / "model").state_dict()
    for name, value in Embedder.from_pretrained(tmp_path / "one" / "model").state_dict().items():
        torch.testing.assert_close(there[name], value, rtol=1e-3, atol=1e-4, msg=name)
