"""The loss on the held-out split."""

from __future__ import annotations

from math import ceil

import torch

from shardwright.data import Batch, GlobalBatches
from shardwright.model.loss import NO_TARGET
from shardwright.parallel import Engine, Mesh, World


def held_out_loss(engine: Engine, batches: GlobalBatches, mesh: Mesh, world: World) -> float:
    """Mean −log p a token over the held-out sequences, each read by one data rank; the same for every layout."""
    whole, ranks, microbatch = batches.read(0), mesh.layout.data_ranks, mesh.layout.microbatch
    first, stop = (rank * batches.sequences // ranks for rank in (mesh.data_rank, mesh.data_rank + 1))
    # Sharded models gather parameters in every forward pass, so all ranks must make equally many of them.
    rounds = ceil(ceil(batches.sequences / ranks) / microbatch)
    loss, tokens = torch.zeros((), dtype=torch.float64, device=world.device), 0
    for start in range(first, first + rounds * microbatch, microbatch):
        piece = whole.rows(start, min(start + microbatch, stop)) if start < stop else _nothing(whole)
        loss += engine.evaluate(piece)
        tokens += int((piece.targets != NO_TARGET).sum())
    totals = torch.tensor([0.0, 0.0], dtype=torch.float64, device=world.device)
    if mesh.speaks_for_its_data:
        totals[0] = loss
        totals[1] = tokens if mesh.coordinate("pp") == 0 else 0
    summed, count = world.sum(totals).tolist()
    return summed / count


def _nothing(batch: Batch) -> Batch:
    """A sequence of which no token counts."""
    row = batch.rows(0, 1)
    return Batch(row.inputs, torch.full_like(row.targets, NO_TARGET), None)
