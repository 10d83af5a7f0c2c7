"""The decoder: embedding, blocks, norm, head.

`forward` goes from tokens to the summed loss, because that is what a training step needs and because the full logits
must never exist; `logits` is for reading a model's mind a few positions at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shardwright.model.attention import Attention, attention_mask
from shardwright.model.feed_forward import FeedForward
from shardwright.model.layers import Embedding, Linear, RMSNorm
from shardwright.model.loss import all_logits, next_token_loss
from shardwright.model.moe import MixtureOfExperts
from shardwright.model.rope import tables
from shardwright.spec import BadInput, ModelSpec


class Losses(NamedTuple):
    """What a batch's tokens sum to; both are divided by the global token count outside."""

    next_token: Tensor
    """Σ −log p(next token)."""
    balance: Tensor
    """Σ of the experts' balance losses, weighted by tokens; 0 in a dense model."""


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(spec.hidden, spec.norm_epsilon)
        self.attention = Attention(spec)
        self.feed_forward_norm = RMSNorm(spec.hidden, spec.norm_epsilon)
        self.feed_forward: FeedForward | MixtureOfExperts
        if spec.is_expert_layer(layer):
            assert spec.experts is not None
            self.feed_forward = MixtureOfExperts(spec.hidden, spec.experts)
        else:
            self.feed_forward = FeedForward(spec.hidden, spec.feed_forward)

    def forward(self, x_bsd: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The residual stream after the block, and the experts' balance loss if it has experts."""
        x_bsd = x_bsd + self.attention(self.attention_norm(x_bsd), rope, mask)
        out = self.feed_forward(self.feed_forward_norm(x_bsd))
        if isinstance(out, tuple):
            return x_bsd + out[0], out[1]
        return x_bsd + out, None


class Decoder(nn.Module):
    """A whole model. `compute_dtype` is the type of activations and products; parameters may be kept wider.

    Given a range of layers it has only what those need: the embedding if they are the first, the norm and the head if
    they are the last (`stage.py` computes with such a part).
    """

    def __init__(self, spec: ModelSpec, layers: range | None = None) -> None:
        super().__init__()
        refuse_unknown_parts(spec)
        layers = range(spec.layers) if layers is None else layers
        self.spec = spec
        self.compute_dtype = torch.float32
        self.is_first, self.is_last = layers.start == 0, layers.stop == spec.layers
        if self.is_first or (self.is_last and spec.tied_embeddings):
            self.embedding = Embedding(spec.vocabulary, spec.hidden)
        # Blocks by number, not position: a stage that holds blocks 4 to 7 has the same names as the whole model.
        self.layers = nn.ModuleDict({str(layer): Block(spec, layer) for layer in layers})
        if self.is_last:
            self.norm = RMSNorm(spec.hidden, spec.norm_epsilon)
        self.head = Linear(spec.hidden, spec.vocabulary) if self.is_last and not spec.tied_embeddings else None
        # From hidden states to losses and logits; replaced where the head is split.
        self.loss: Callable[[Tensor, Tensor, Tensor], Tensor] = next_token_loss
        self.read_out: Callable[[Tensor, Tensor], Tensor] = all_logits

    @property
    def head_weight(self) -> Tensor:
        """(vocabulary, hidden): the head's own weight, or the embedding table where they are tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    def forward(self, inputs_bs: Tensor, targets_bs: Tensor, documents_bs: Tensor | None = None) -> Losses:
        """Losses summed over the targets. `documents_bs` numbers the documents packed into each sequence."""
        hidden_bsd, balance = self.hidden(inputs_bs, documents_bs)
        return Losses(self.loss(hidden_bsd, self.head_weight, targets_bs), balance)

    def hidden(self, inputs_bs: Tensor, documents_bs: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Normed hidden states of every position, and the summed balance loss."""
        x_bsd = self.embedding(inputs_bs).to(self.compute_dtype)
        x_bsd, balance = self.through_blocks(x_bsd, documents_bs, length=inputs_bs.shape[1])
        return self.norm(x_bsd), balance

    def through_blocks(self, x_bsd: Tensor, documents_bs: Tensor | None, length: int) -> tuple[Tensor, Tensor]:
        """The residual stream of sequences of this length after the blocks, and their summed balance loss."""
        device = x_bsd.device
        rope = tables(self.spec.rope, self.spec.head_dim, torch.arange(length, device=device))
        mask = attention_mask(documents_bs, length, self.spec.window, device)
        balance = torch.zeros((), device=device)
        for block in self.layers.values():
            x_bsd, block_balance = block(x_bsd, rope, mask)
            if block_balance is not None:
                balance = balance + block_balance
        return x_bsd, balance

    def logits(self, inputs_bs: Tensor) -> Tensor:
        """Logits of every position, fp32: for short inputs."""
        hidden_bsd, _ = self.hidden(inputs_bs)
        return self.read_out(hidden_bsd, self.head_weight)


def refuse_unknown_parts(spec: ModelSpec) -> None:
    """What can be described, counted and planned but not yet computed."""
    if spec.latent is not None:
        raise BadInput("model.latent", rule="multi-head latent attention can be planned but not yet trained")
    if spec.experts is not None and spec.experts.selection_bias:
        raise BadInput(
            "model.experts.selection_bias",
            True,
            rule="the loss-free bias can be planned but not yet trained",
            fix="Use selection_bias = false with a balance_loss",
        )
