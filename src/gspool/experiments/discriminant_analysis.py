"""Linear discriminant analysis from running sums: memory does not grow with the number of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor


class DiscriminantAnalysis:
    """Collect features and labels batch by batch, then compute the directions that separate the classes best.

    They are the eigenvectors of ``(S_w + r I)^-1 S_b`` with the largest eigenvalues, at most one less than classes.
    ``r`` is ``ridge`` times the mean variance within classes, so that features that never vary do no harm.

    Args:
        num_classes: the number of classes.
        dim: length of the features.
        ridge: share of the mean variance within classes, positive.

    Raises:
        ValueError: if ``ridge`` is not positive.

    Example:
        >>> analysis = DiscriminantAnalysis(num_classes=2, dim=2)
        >>> analysis.add(torch.tensor([[0.0, 0.0], [0.0, 9.0], [1.0, 0.0], [1.0, 9.0]]), torch.tensor([0, 0, 1, 1]))
        >>> direction = analysis.directions(1)[:, 0]
        >>> bool(direction[0].abs() > 100 * direction[1].abs())
        True
    """

    def __init__(self, num_classes: int, dim: int, ridge: float = 1e-3, device: torch.device | str = "cpu") -> None:
        if not ridge > 0:
            raise ValueError(f"ridge must be positive: features that never vary would divide by zero, got {ridge}")
        self.ridge = ridge
        self.sums = torch.zeros(num_classes, dim, dtype=torch.float64, device=device)
        self.counts = torch.zeros(num_classes, dtype=torch.float64, device=device)
        self.products = torch.zeros(dim, dim, dtype=torch.float64, device=device)

    def add(self, features: Float[Tensor, "B D"], labels: Int64[Tensor, " B"]) -> None:
        """Add a batch to the sums."""
        wide = features.double()
        self.sums.index_add_(0, labels, wide)
        self.counts += labels.bincount(minlength=len(self.counts))
        self.products += wide.T @ wide

    def directions(self, count: int) -> Float[Tensor, "D E"]:
        """Return the best directions as columns: ``count`` of them, or one less than classes.

        Raises:
            ValueError: if a class has no features yet.
        """
        if bool((self.counts == 0).any()):
            raise ValueError(
                f"{int((self.counts == 0).sum())} classes have no features; add images of every class first"
            )
        total = self.counts.sum()
        means, mean = self.sums / self.counts[:, None], self.sums.sum(0) / total
        within = (self.products - (self.sums.T / self.counts) @ self.sums) / total
        apart = (means - mean) * (self.counts / total).sqrt()[:, None]
        dim = len(mean)
        within += self.ridge * within.diagonal().mean() * torch.eye(dim, dtype=torch.float64, device=within.device)
        # After whitening the scatter within classes, the directions are those of the largest variance between classes.
        root = torch.linalg.cholesky(within)
        white = torch.linalg.solve_triangular(root, apart.T, upper=False)
        left = torch.linalg.svd(white, full_matrices=False).U
        kept = left[:, : min(count, len(self.counts) - 1, dim)]
        return torch.linalg.solve_triangular(root.T, kept, upper=True)
