"""A stretch of the decoder that computes by itself: some blocks, with what stands before the first or after the last.

Stages in a row compute what the whole model computes. Between two of them goes the residual stream, and beside it, in
a model whose experts have a balance loss, the balance loss so far: the last stage then holds all of it, and backward
carries its gradient to every router the same way back. Parameter names are those of the whole model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shardwright.model.decoder import Decoder
from shardwright.spec import ModelSpec


class Stage(Decoder):
    """Consecutive blocks of a model. With tied embeddings the last stage has a copy of the table as its head."""

    # Called by a schedule with what the stage before returned, never in a whole model's place.
    def forward(  # type: ignore[override]
        self, x: Tensor, balance: Tensor | None = None, *, targets_bs: Tensor, documents_bs: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """From tokens or the residual stream to the stream (and balance loss), or to both summed losses at the end."""
        x_bsd = self.embedding(x).to(self.compute_dtype) if self.is_first else x
        x_bsd, own_balance = self.through_blocks(x_bsd, documents_bs, length=targets_bs.shape[1])
        balance = own_balance if balance is None else balance + own_balance
        if self.is_last:
            return self.loss(self.norm(x_bsd), self.head_weight, targets_bs), balance
        return (x_bsd, balance) if passes_balance(self.spec) else (x_bsd,)


def passes_balance(spec: ModelSpec) -> bool:
    """Whether a balance loss goes from stage to stage beside the residual stream."""
    return spec.experts is not None and spec.experts.balance_loss > 0


def build_stage(spec: ModelSpec, layers: range) -> Stage:
    """The stage of these layers on the meta device: names and shapes, no memory."""
    with torch.device("meta"):
        return Stage(spec, layers)
