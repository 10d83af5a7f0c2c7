"""Triton kernels for CUDA devices; imported only there. Each has a plain torch twin, and a test that they agree.

`cross_entropy_` was measured against its twin and against `torch.nn.functional.cross_entropy` on full logits: see
`docs/log.md`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192


@triton.jit
def _cross_entropy(logits, targets, losses, columns, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    counted = target >= 0
    # First pass: the running maximum and the sum of exponentials below it (arXiv:1805.02867).
    largest = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        place = start + tl.arange(0, BLOCK)
        x = tl.load(logits + place, mask=place < columns, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(x - higher), 0)
        largest = higher
    log_sum = largest + tl.log(total)
    mine = tl.load(logits + tl.where(counted, target, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(counted, log_sum - mine, 0.0))
    # The target's logit must be read by all before the second pass overwrites it.
    tl.debug_barrier()
    for start in range(0, columns, BLOCK):
        place = start + tl.arange(0, BLOCK)
        x = tl.load(logits + place, mask=place < columns, other=-float("inf")).to(tl.float32)
        gradient = tl.exp(x - log_sum) - tl.where(place == target, 1.0, 0.0)
        tl.store(logits + place, tl.where(counted, gradient, 0.0), mask=place < columns)


def cross_entropy_(logits_tv: Tensor, targets_t: Tensor) -> Tensor:
    """−log p(target) of each row, fp32; the logits are overwritten by their gradients. Negative targets do not count.

    Two passes over the logits in their own type, where torch's operations make ten in fp32.
    """
    losses_t = torch.empty(len(logits_tv), device=logits_tv.device, dtype=torch.float32)
    columns = logits_tv.shape[1]
    _cross_entropy[(len(logits_tv),)](
        logits_tv, targets_t, losses_t, columns, logits_tv.stride(0), BLOCK=BLOCK, num_warps=16
    )
    return losses_t
