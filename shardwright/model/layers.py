"""The three layers that everything is made of.

Parameters may be kept in a wider type than the activations (fp32 weights, bf16 products): each use casts the weight to
the activation's type, which costs nothing where they agree, and autograd returns the gradient in the wider type.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """`x @ weight.T + bias`, the weight cast to the type of x. First values come from `initialise.py`."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias=bias)

    def reset_parameters(self) -> None:
        """Nothing: `initialise.py` fills every parameter by its name."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class Embedding(nn.Embedding):
    """A row of the table for each token."""

    def reset_parameters(self) -> None:
        """Nothing: `initialise.py` fills every parameter by its name."""


class RMSNorm(nn.Module):
    """Root-mean-square norm (arXiv:1910.07467); the mean is taken in fp32 whatever x is."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.epsilon)
