"""Grouped-query attention over packed documents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardwright.model.layers import Linear, RMSNorm
from shardwright.model.rope import rotate
from shardwright.spec import ModelSpec


def attention_mask(
    documents_bs: Tensor | None, positions: int, window: int | None, device: torch.device
) -> Tensor | None:
    """True where a query may look: back, inside its document, inside the window; None where causal says it all."""
    if documents_bs is None and (window is None or window >= positions):
        return None
    place = torch.arange(positions, device=device)
    distance = place[:, None] - place[None, :]
    allowed = distance >= 0
    if window is not None:
        allowed &= distance < window
    if documents_bs is None:
        return allowed[None, None]
    same = documents_bs[:, None, :, None] == documents_bs[:, None, None, :]
    return same & allowed


class Attention(nn.Module):
    """Queries in `heads`, keys and values in `kv_heads`; rotary positions; optional norms on queries and keys."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.softmax_scale = spec.rope.softmax_factor * spec.head_dim**-0.5
        query_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        self.query = Linear(spec.hidden, query_width, bias=spec.qkv_bias)
        self.key = Linear(spec.hidden, kv_width, bias=spec.qkv_bias)
        self.value = Linear(spec.hidden, kv_width, bias=spec.qkv_bias)
        self.output = Linear(query_width, spec.hidden, bias=spec.output_bias)
        self.query_norm = RMSNorm(spec.head_dim, spec.norm_epsilon) if spec.qk_norm else None
        self.key_norm = RMSNorm(spec.head_dim, spec.norm_epsilon) if spec.qk_norm else None

    def forward(self, x_bsd: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        query, key, value = (self._heads(project(x_bsd)) for project in (self.query, self.key, self.value))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = rotate(query, *rope), rotate(key, *rope)
        mixed_bhsk = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.softmax_scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return self.output(mixed_bhsk.transpose(1, 2).flatten(2))

    def _heads(self, x_bsd: Tensor) -> Tensor:
        # The number of heads is read off the tensor: under tensor parallelism each rank has a part of them.
        return x_bsd.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
