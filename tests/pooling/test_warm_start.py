"""The warm start: averaging first, then prototypes from what was seen; under resume and across processes."""

import multiprocessing
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from gspool import GSP


def train(pool, batches):
    return [pool.pool(x) for x in batches]


def batches(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(6, 9, 5, generator=generator) / 3 for _ in range(count)]


def test_averages_until_enough_was_seen_then_selects():
    pool = GSP(5, prototypes=4, epsilon=20.0, warm_start=15)
    data = batches(4)
    outputs = train(pool, data)
    for x, out in zip(data[:3], outputs[:3], strict=True):
        torch.testing.assert_close(out.pooled, x.mean(1))
        torch.testing.assert_close(out.attributes, torch.full((6, 4), 0.25))
    seen = torch.cat([x.mean(1) for x in data[:3]])[:15]
    assert torch.cdist(pool.prototypes.detach(), seen).amin(1).max() < 1e-6
    assert (outputs[3].pooled - data[3].mean(1)).abs().max() > 1e-3
    assert not pool.warm_start.collecting


def test_evaluation_collects_nothing():
    pool = GSP(5, prototypes=4, warm_start=15).eval()
    train(pool, batches(5))
    assert pool.warm_start.memory.shape[0] == 0


def test_every_parameter_has_a_gradient_from_the_first_step():
    pool = GSP(5, prototypes=4, warm_start=15, learn_mu=True, learn_epsilon=True)
    for x in batches(4):
        pool.zero_grad()
        pool(x).square().sum().backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in pool.parameters())


def test_an_interrupted_run_resumes_to_the_same_prototypes():
    torch.manual_seed(0)
    whole = GSP(5, prototypes=4, warm_start=15)
    start = whole.state_dict()
    broken = GSP(5, prototypes=4, warm_start=15)
    broken.load_state_dict(start)
    data = batches(4)
    train(whole, data)
    train(broken, data[:2])
    resumed = GSP(5, prototypes=4, warm_start=15)
    resumed.load_state_dict(broken.state_dict())
    assert resumed.warm_start.memory.shape == (12, 5)
    train(resumed, data[2:])
    assert torch.equal(resumed.prototypes, whole.prototypes)
    done = GSP(5, prototypes=4, warm_start=15)
    done.load_state_dict(whole.state_dict())
    assert not done.warm_start.collecting


def choose_on_rank(rank: int, folder: Path) -> None:
    """Train half of every batch in one of two processes, and write the state."""
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(GSP(5, prototypes=4, warm_start=16))
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        whole = torch.randn(8, 9, 5, generator=generator) / 3
        model(whole[4 * rank : 4 * rank + 4]).square().sum().backward()
    torch.save(model.module.state_dict(), folder / f"rank{rank}.pt")
    # Both leave together, and nothing of DDP outlives the group.
    del model
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_two_processes_choose_the_prototypes_of_one(tmp_path):
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=choose_on_rank, args=(rank, tmp_path)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
    assert [process.exitcode for process in ranks] == [0, 0]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    torch.manual_seed(0)
    alone = GSP(5, prototypes=4, warm_start=16)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        alone(torch.randn(8, 9, 5, generator=generator) / 3)
    assert torch.equal(first["prototypes"], second["prototypes"])
    torch.testing.assert_close(first["prototypes"], alone.prototypes.detach())
