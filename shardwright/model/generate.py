"""Text from a model: one token after another."""

from __future__ import annotations

import torch
from torch import Tensor

from shardwright.model.decoder import Decoder


@torch.no_grad()
def generate(
    model: Decoder, prompt_s: Tensor, tokens: int, *, vocabulary: int, seed: int, window: int, temperature: float = 0.8
) -> Tensor:
    """Continue a prompt by this many tokens, drawn at a temperature from the first `vocabulary` ids.

    The last `window` positions are read anew for each token: plain, and quick enough for a sample at a run's end.
    """
    random = torch.Generator().manual_seed(seed)
    sequence = prompt_s
    for _ in range(tokens):
        logits_v = model.logits(sequence[None, -window:])[0, -1, :vocabulary].cpu()
        token = torch.multinomial((logits_v / temperature).softmax(-1), 1, generator=random)
        sequence = torch.cat((sequence, token.to(sequence.device)))
    return sequence
