"""The loss over a vocabulary that is split among ranks: each holds some rows of the head and computes those logits.

Three numbers a token cross the wire (the largest logit, the sum of exponentials, the target's logit) instead of the
logits themselves. As in `shardwright.model.loss`, tokens are taken a slice at a time and each slice's gradients are
computed at once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from shardwright.cost.memory import LOGITS_AT_ONCE
from shardwright.model.loss import NO_TARGET, slices


def split_vocabulary_loss(hidden_bsd: Tensor, rows_vd: Tensor, targets_bs: Tensor, mesh: DeviceMesh) -> Tensor:
    """Sum over targets of −log p(target), the same on every rank of `mesh`."""
    at_once = max(1, LOGITS_AT_ONCE[hidden_bsd.device.type] // len(rows_vd))
    first = mesh.get_local_rank() * len(rows_vd)
    loss = _SplitLoss.apply(
        hidden_bsd.flatten(0, 1), rows_vd.to(hidden_bsd.dtype), targets_bs.flatten(), at_once, first, mesh.get_group()
    )
    assert isinstance(loss, Tensor)
    return loss


class _SplitLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_td: Tensor,
        rows_vd: Tensor,
        targets_t: Tensor,
        at_once: int,
        first: int,
        group: dist.ProcessGroup,
    ) -> Tensor:
        loss = hidden_td.new_zeros((), dtype=torch.float32)
        wants_gradient = any(ctx.needs_input_grad[:2])
        grad_hidden = torch.empty_like(hidden_td) if wants_gradient else None
        grad_rows: Tensor | None = None
        for hidden, targets, start in slices(hidden_td, targets_t, at_once):
            logits = (hidden @ rows_vd.T).float()
            largest = logits.amax(-1)
            dist.all_reduce(largest, dist.ReduceOp.MAX, group)
            mine = (targets >= first) & (targets < first + len(rows_vd))
            index = torch.where(mine, targets - first, 0)[:, None]
            exponentials = (logits - largest[:, None]).exp_()
            sums = torch.stack((exponentials.sum(-1), logits.gather(-1, index).squeeze(-1) * mine))
            dist.all_reduce(sums, group=group)
            counted = targets != NO_TARGET
            loss += ((largest + sums[0].log() - sums[1]) * counted).sum()
            if grad_hidden is None:
                continue
            grad = exponentials.div_(sums[0][:, None])
            grad.scatter_add_(-1, index, -mine.to(grad.dtype)[:, None])
            grad = grad.mul_(counted[:, None]).to(hidden.dtype)
            grad_hidden[start : start + len(hidden)] = grad @ rows_vd
            part = grad.T @ hidden
            grad_rows = part.float() if grad_rows is None else grad_rows.add_(part)
        ctx.save_for_backward(grad_hidden, None if grad_rows is None else grad_rows.to(rows_vd.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_rows = ctx.saved_tensors
        scale = gradients[0]
        return grad_hidden * scale.to(grad_hidden.dtype), grad_rows * scale.to(grad_rows.dtype), None, None, None, None


def split_logits(hidden_bsd: Tensor, rows_vd: Tensor, mesh: DeviceMesh) -> Tensor:
    """All logits on every rank, fp32: for reading a few positions, without gradients."""
    mine = (hidden_bsd @ rows_vd.to(hidden_bsd.dtype).T).float().contiguous()
    parts = [torch.empty_like(mine) for _ in range(mesh.size())]
    dist.all_gather(parts, mine, group=mesh.get_group())
    return torch.cat(parts, dim=-1)
