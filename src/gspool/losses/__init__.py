"""Losses: the paper's zero-shot regularisation."""

from gspool.losses.zsr import ZSRLoss

__all__ = ["ZSRLoss"]
