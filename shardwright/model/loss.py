"""Next-token loss straight from hidden states, a slice of tokens at a time.

The logits of a long batch are often the largest tensor of a step (tokens × vocabulary, then their softmax, then their
gradient). Here each slice's logits become its loss and, at once, the gradients of hidden states and head; then they are
gone. The products are those of the plain computation, only in slices: nothing is computed twice.

`torch.nn.functional.linear_cross_entropy` (2.13) does the same with chunking switched on; it is missing in 2.11, and
`docs/log.md` has the comparison of the two.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shardwright.cost.memory import LOGITS_AT_ONCE

NO_TARGET = -100
"""A target that does not count."""


def all_logits(hidden_bsd: Tensor, head_vd: Tensor) -> Tensor:
    """Logits of every position, fp32: for a few positions."""
    return F.linear(hidden_bsd, head_vd.to(hidden_bsd.dtype)).float()


def next_token_loss(hidden_bsd: Tensor, head_vd: Tensor, targets_bs: Tensor) -> Tensor:
    """Sum over targets of −log p(target): a scalar, fp32. Targets of `NO_TARGET` do not count."""
    hidden_td, targets_t = hidden_bsd.reshape(-1, hidden_bsd.shape[-1]), targets_bs.reshape(-1)
    rows = max(1, LOGITS_AT_ONCE[hidden_td.device.type] // head_vd.shape[0])
    loss = _SlicedLoss.apply(hidden_td, head_vd.to(hidden_td.dtype), targets_t, rows)
    assert isinstance(loss, Tensor)
    return loss


class _SlicedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_td: Tensor, head_vd: Tensor, targets_t: Tensor, rows: int) -> Tensor:
        loss = hidden_td.new_zeros((), dtype=torch.float32)
        wants_gradient = any(ctx.needs_input_grad[:2])
        grad_hidden = torch.empty_like(hidden_td) if wants_gradient else None
        grad_head: Tensor | None = None
        for hidden, targets, start in slices(hidden_td, targets_t, rows):
            logits = hidden @ head_vd.T
            if grad_hidden is None:
                loss += F.cross_entropy(logits.float(), targets, ignore_index=NO_TARGET, reduction="sum")
                continue
            losses, grad = _with_gradient(logits, targets)
            loss += losses.sum()
            grad_hidden[start : start + len(hidden)] = grad @ head_vd
            part = grad.T @ hidden
            grad_head = part.float() if grad_head is None else grad_head.add_(part)
        ctx.save_for_backward(grad_hidden, None if grad_head is None else grad_head.to(head_vd.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_head = ctx.saved_tensors
        scale = gradients[0]
        return grad_hidden * scale.to(grad_hidden.dtype), grad_head * scale.to(grad_head.dtype), None, None


def _with_gradient(logits_tv: Tensor, targets_t: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each row and the gradient of the logits, softmax − one at the target; the logits are used up."""
    if logits_tv.is_cuda:
        from shardwright.model.kernels import cross_entropy_

        return cross_entropy_(logits_tv, targets_t), logits_tv
    return cross_entropy_in_torch(logits_tv, targets_t)


def cross_entropy_in_torch(logits_tv: Tensor, targets_t: Tensor) -> tuple[Tensor, Tensor]:
    """The same in plain torch, on any device."""
    counted_t = targets_t != NO_TARGET
    index_t1 = targets_t.clamp(min=0)[:, None]
    log_p_tv = F.log_softmax(logits_tv, -1, dtype=torch.float32)
    losses_t = -log_p_tv.gather(-1, index_t1).squeeze(-1) * counted_t
    grad_tv = log_p_tv.exp_()
    grad_tv.scatter_add_(-1, index_t1, torch.full_like(index_t1, -1, dtype=grad_tv.dtype))
    return losses_t, grad_tv.mul_(counted_t[:, None]).to(logits_tv.dtype)


def slices(hidden_td: Tensor, targets_t: Tensor, rows: int) -> list[tuple[Tensor, Tensor, int]]:
    """Equal slices of at most `rows` tokens, so that no last one is a sliver."""
    count = -(-len(hidden_td) // rows)
    pieces = zip(hidden_td.chunk(count), targets_t.chunk(count))
    size = -(-len(hidden_td) // count)
    return [(hidden, targets, number * size) for number, (hidden, targets) in enumerate(pieces)]
