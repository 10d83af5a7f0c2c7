"""SwiGLU (arXiv:2002.05202): down(silu(gate(x)) · up(x))."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from shardwright.model.layers import Linear


class FeedForward(nn.Module):
    """The dense network of a block, and the shared expert of a mixture."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate = Linear(hidden, width)
        self.up = Linear(hidden, width)
        self.down = Linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))
