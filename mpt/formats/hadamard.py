"""A random Hadamard transform: spreads outliers over groups of 16, and cancels in a product of two rotated operands."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mpt.formats.operand import HADAMARD


@cache
def hadamard_matrix(device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Sylvester's matrix with rows of random sign, orthonormal: its product with its transpose is the identity.

    The signs are the same in every run: what is random is that they don't depend on the data.
    Shapes: 16, 16.
    """
    matrix = torch.ones(1, 1)
    while len(matrix) < HADAMARD:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (HADAMARD, 1), generator=torch.Generator().manual_seed(0)) * 2 - 1
    signed: Tensor = signs * matrix / HADAMARD**0.5
    return signed.to(device, dtype)


def rotate_first(x: Tensor) -> Tensor:
    """Each run of 16 numbers along the first dimension, times the matrix, in float32. Shapes: (16·n, …) to the same."""
    runs = x.to(torch.float32).reshape(-1, HADAMARD, x[0].numel())
    return torch.matmul(hadamard_matrix(x.device).t(), runs).view(x.shape)
