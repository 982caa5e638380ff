"""Two processes that share a batch give the gradient of one process that has all of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from gspool import Embedder, data
from gspool.training import embed_images, fit
from gspool.training.gpu_data import TensorSet
from gspool.training.metric_learning import MetricLearning, build_loss, build_model
from gspool.training.processes import gather_blocks, gather_rows
from gspool.training.run_folder import read_result
from gspool.training.stream import Batch
from training.interrupted_runs import fork, said, start, wait
from training.tiny_run import tiny

pytestmark = [
    pytest.mark.usefixtures("ready_to_fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]

LOSSES = ("c1", "c2", "triplet", "ms", "pnca", "panchor", "xbm+c1", "libc", "cross_entropy")
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


def work(rank: int, meeting: Path, out: Path) -> None:
    """Run in each of two processes: half of the classes each, the loss of the whole batch, the average of gradients."""

    class Step(torch.nn.Module):
        def __init__(self, task):
            super().__init__()
            self.module, self.task = task.module, task

        def forward(self, batch):
            return self.task.loss(batch, 0).total

    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    batch = Batch(*(part.chunk(2)[rank] for part in whole_batch()))
    gradients = {}
    for loss in LOSSES:
        task = training(loss)
        ddp = DistributedDataParallel(Step(task))
        for _ in range(STEPS):
            task.module.zero_grad()
            ddp(batch).backward()
        gradients[loss] = gradients_of(task.module)
        del ddp
    embedded = embed_images(task.model, letters(), batch_size=16).embeddings
    joined = gather_blocks(ragged_block(rank))
    if rank == 0:
        torch.save({"gradients": gradients, "joined": joined, "embedded": embedded}, out)
    # Both leave together, and nothing of DDP outlives the group: a process that goes early ends the other's threads.
    distributed.barrier()
    distributed.destroy_process_group()


def letters():
    return data.create("glyphs", split="test", images_per_class=2, size=16)


def test_two_processes_give_the_gradient_of_one_and_evaluate_without_duplicates(tmp_path):
    assert wait([fork(partial(work, rank, tmp_path / "meeting", tmp_path / "out.pt")) for rank in range(2)]) == [0, 0]
    shared = torch.load(tmp_path / "out.pt", weights_only=True)
    for loss in LOSSES:
        task = training(loss)
        for _ in range(STEPS):
            task.module.zero_grad()
            task.loss(whole_batch(), 0).total.backward()
        alone, together = gradients_of(task.module), shared["gradients"][loss]
        assert set(together) == set(alone)
        assert any(name.startswith("loss.zsr") for name in alone)
        assert any(name.startswith("loss.metric") for name in alone) == (
            loss in ("pnca", "panchor", "libc", "cross_entropy")
        )
        for name, gradient in alone.items():
            torch.testing.assert_close(together[name], gradient, rtol=1e-9, atol=1e-12, msg=f"{loss}: {name}")
    torch.testing.assert_close(shared["joined"], torch.arange(8.0))
    expected = embed_images(task.model, letters(), batch_size=16).embeddings
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
    assert wait(start(config, 2)) == [0, 0], said(tmp_path / "two")
    two = read_result(tmp_path / "two")
    assert read_result(tmp_path / "two" / "baseline-gap")["steps"] == one.steps
    assert "gap" in (tmp_path / "two" / "report.html").read_text()
    assert (tmp_path / "two" / "log.txt").read_text().count("from step 0") == 1
    assert (two["steps"], two["best_step"]) == (one.steps, one.best_step)
    there = Embedder.from_pretrained(tmp_path / "two" / "model").state_dict()
    for name, value in Embedder.from_pretrained(tmp_path / "one" / "model").state_dict().items():
        torch.testing.assert_close(there[name], value, rtol=1e-3, atol=1e-4, msg=name)
