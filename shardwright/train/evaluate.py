"""The loss on the held-out split."""

from __future__ import annotations

from math import ceil

import torch

from shardwright.data import Batch, GlobalBatches
from shardwright.model import Decoder
from shardwright.model.loss import NO_TARGET
from shardwright.parallel import Mesh
from shardwright.spec import Layout


@torch.no_grad()
def held_out_loss(model: Decoder, batches: GlobalBatches, layout: Layout, mesh: Mesh, device: torch.device) -> float:
    """Mean −log p a token over the held-out sequences, each read by one data rank; the same for every layout."""
    whole, ranks = batches.read(0), layout.data_ranks
    first, stop = (rank * batches.sequences // ranks for rank in (mesh.data_rank, mesh.data_rank + 1))
    # Sharded models gather parameters in every forward pass, so all ranks must make equally many of them.
    rounds = ceil(ceil(batches.sequences / ranks) / layout.microbatch)
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    for start in range(first, first + rounds * layout.microbatch, layout.microbatch):
        piece = whole.rows(start, min(start + layout.microbatch, stop)) if start < stop else _nothing(whole)
        piece = piece.to(device)
        totals[0] += model(piece.inputs, piece.targets, piece.documents).next_token
        totals[1] += (piece.targets != NO_TARGET).sum()
    loss, tokens = mesh.sum_over_data(totals).tolist()
    return loss / tokens


def _nothing(batch: Batch) -> Batch:
    """A sequence of which no token counts."""
    row = batch.rows(0, 1)
    return Batch(row.inputs, torch.full_like(row.targets, NO_TARGET), None)
