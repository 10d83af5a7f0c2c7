"""Tensor and sequence parallelism: matrices split by columns, then by rows; what lies between split along the sequence.

The plan is a table from module name to style. Every pair of matrices is a column-then-row pair (arXiv:1909.08053): the
first needs the whole sequence and gives a part of the columns (of the heads, in attention); the second turns those into
partial sums. Between pairs, norms and residuals work on a part of the sequence (arXiv:2205.05198): partial sums are
reduce-scattered into it and all-gathered out of it, which together move what one all-reduce would.

The embedding and the head are split over the vocabulary; the loss is computed from each rank's part of the logits
(`vocabulary.py`), and the full logits are never gathered.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from shardwright.model import Decoder
from shardwright.parallel.vocabulary import split_logits, split_vocabulary_loss

SEQUENCE = Shard(1)
"""Activations are (sequences, positions, hidden): split along the positions."""


def block_plan() -> dict[str, ParallelStyle]:
    """Styles of one block's modules."""
    return {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(SEQUENCE, None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.query_norm": SequenceParallel(sequence_dim=1, use_local_output=True),  # (sequences, heads, …)
        "attention.key_norm": SequenceParallel(sequence_dim=1, use_local_output=True),
        "attention.output": RowwiseParallel(output_layouts=SEQUENCE),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=SEQUENCE, desired_input_layouts=Replicate()),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=SEQUENCE),
    }


def ends_plan() -> dict[str, ParallelStyle]:
    """Styles of what stands before and after the blocks."""
    return {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=SEQUENCE),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(),
    }


def split(model: Decoder, mesh: DeviceMesh) -> None:
    """Split a model over the ranks of `mesh`, in place, while it is on meta."""
    for block in model.layers.values():
        _parallelize(block, mesh, block_plan())
    _parallelize(model, mesh, ends_plan())

    def loss(hidden_bsd: Tensor, head_vd: Tensor, targets_bs: Tensor) -> Tensor:
        return split_vocabulary_loss(_whole_sequence(hidden_bsd), _own_rows(head_vd), targets_bs, mesh)

    def read_out(hidden_bsd: Tensor, head_vd: Tensor) -> Tensor:
        return split_logits(_whole_sequence(hidden_bsd), _own_rows(head_vd), mesh)

    model.loss, model.read_out = loss, read_out


def _parallelize(module: torch.nn.Module, mesh: DeviceMesh, plan: dict[str, ParallelStyle]) -> None:
    """Apply the styles of the modules that are there: not every model has query norms or a head of its own."""
    names = {name for name, _ in module.named_modules()}
    parallelize_module(module, mesh, {name: style for name, style in plan.items() if name in names})


def _whole_sequence(hidden_bsd: Tensor) -> Tensor:
    """All positions, on every rank; each rank's gradient of them is a partial sum, scattered again on the way back."""
    assert isinstance(hidden_bsd, DTensor)
    return hidden_bsd.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def _own_rows(head_vd: Tensor) -> Tensor:
    assert isinstance(head_vd, DTensor)
    return head_vd.to_local()
