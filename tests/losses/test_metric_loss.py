"""The mixture (1 - lambda) L_DML + lambda L_ZS."""

from __future__ import annotations

import pytest
import torch

from gspool import losses
from gspool.losses import MetricLoss, ZSRLoss, create

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.nn.functional.normalize(torch.randn(6, 8, generator=generator))
    return embeddings, torch.rand(6, 5, generator=generator).softmax(1)


@pytest.mark.parametrize("weight", [0.0, 0.1, 1.0])
def test_total_is_the_mixture_of_both_losses(weight):
    metric, zsr = create("ms", 3, 8), ZSRLoss(num_classes=3, dim=8)
    embeddings, attributes = batch()
    torch.manual_seed(5)
    parts = MetricLoss(metric, zsr, weight)(embeddings, LABELS, attributes)
    torch.manual_seed(5)
    expected = (1 - weight) * metric(embeddings, LABELS) + weight * zsr(attributes, LABELS)
    torch.testing.assert_close(parts.total, expected)


def test_without_regularisation_the_metric_loss_is_all():
    embeddings, attributes = batch()
    parts = MetricLoss(create("c2", 3, 8))(embeddings, LABELS, attributes)
    assert parts.zero_shot is None
    assert parts.total is parts.metric


def test_attributes_are_needed_to_regularise():
    loss = MetricLoss(create("c2", 3, 8), ZSRLoss(num_classes=3, dim=8))
    with pytest.raises(ValueError, match=r"needs attributes.*gemean\+gsp"):
        loss(batch()[0], LABELS)


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan")])
def test_lambda_lies_between_0_and_1(weight):
    with pytest.raises(ValueError, match="lambda"):
        MetricLoss(create("c2", 3, 8), None, weight)


@pytest.mark.parametrize("name", ["c1", "ms", "xbm+c1", "pnca"])
def test_a_miner_chooses_the_pairs_of_the_metric_loss(name):
    metric = losses.create(name, num_classes=4, dim=8)
    miner = losses.create_miner("BatchHardMiner")
    embeddings = torch.nn.functional.normalize(torch.randn(12, 8, generator=torch.Generator().manual_seed(0)))
    labels = torch.arange(12) % 4
    mined = MetricLoss(metric, miner=miner)(embeddings, labels).total
    torch.testing.assert_close(mined, metric(embeddings, labels, miner(embeddings, labels)))
    assert mined != MetricLoss(metric)(embeddings, labels).total


def test_miners_go_by_name_and_name_their_options():
    with pytest.raises(ValueError, match=r"no option 'margn', did you mean 'margin'"):
        losses.create_miner("TripletMarginMiner", margn=1)
