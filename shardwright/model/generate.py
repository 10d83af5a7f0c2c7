"""Text from a model: one token after another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from shardwright.model.decoder import Decoder


@torch.no_grad()
def generate(
    model: Decoder,
    prompt_s: Tensor,
    tokens: int,
    *,
    vocabulary: int,
    seed: int,
    window: int,
    temperature: float = 0.8,
    multiple: int = 8,
) -> Tensor:
    """Continue a prompt by this many tokens, drawn at a temperature from the first `vocabulary` ids.

    The last `window` positions are read anew for each token: plain, and quick enough for a sample at a run's end. They
    are padded to a multiple of `multiple`, which a split sequence needs and which later positions do not see.
    """
    random = torch.Generator().manual_seed(seed)
    sequence = prompt_s
    for _ in range(tokens):
        seen = sequence[-window:]
        padded = F.pad(seen, (0, -len(seen) % multiple))
        logits_v = model.logits(padded[None])[0, len(seen) - 1, :vocabulary].cpu()
        token = torch.multinomial((logits_v / temperature).softmax(-1), 1, generator=random)
        sequence = torch.cat((sequence, token.to(sequence.device)))
    return sequence
