"""The loss on the held-out split."""

from __future__ import annotations

import torch

from shardwright.data import GlobalBatches
from shardwright.model import Decoder
from shardwright.model.loss import NO_TARGET
from shardwright.parallel import World


@torch.no_grad()
def held_out_loss(model: Decoder, batches: GlobalBatches, microbatch: int, world: World) -> float:
    """Mean −log p a token over the held-out sequences, each read by one rank; the same for every number of ranks."""
    whole = batches.read(0)
    first, stop = (rank * batches.sequences // world.size for rank in (world.rank, world.rank + 1))
    totals = torch.zeros(2, dtype=torch.float64, device=world.device)
    for start in range(first, stop, microbatch):
        piece = whole.rows(start, min(start + microbatch, stop)).to(world.device)
        totals[0] += model(piece.inputs, piece.targets, piece.documents).next_token
        totals[1] += (piece.targets != NO_TARGET).sum()
    loss, tokens = world.sum(totals).tolist()
    return loss / tokens
