"""Every parameter of a model, by name and shape: the one list that counting, planning and the engine agree on.

The engine builds modules whose parameters have exactly these names and shapes (a test compares them), in
every layout. Experts of a layer are stacked in one tensor with the expert as its first axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from shardwright.spec.model import ModelSpec

Role = Literal["embedding", "norm", "attention", "feed_forward", "router", "expert", "head"]


@dataclass(frozen=True)
class Parameter:
    """One weight of the model."""

    name: str
    """Its name in the engine and in checkpoints."""
    shape: tuple[int, ...]
    """Its full, unsharded shape; matrices are (outputs, inputs)."""
    role: Role
    """What kind of work it does."""
    layer: int | None = None
    """The block it belongs to, if any."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_matmul(self) -> bool:
        """Whether tokens are multiplied by it (an embedding is looked up, a norm only scales)."""
        return len(self.shape) >= 2 and self.role != "embedding"


def parameters(model: ModelSpec) -> Iterator[Parameter]:
    """All parameters in the order in which the forward pass meets them."""
    yield Parameter("embedding.weight", (model.vocabulary, model.hidden), "embedding")
    for layer in range(model.layers):
        yield from block_parameters(model, layer)
    yield Parameter("norm.weight", (model.hidden,), "norm")
    if not model.tied_embeddings:
        yield Parameter("head.weight", (model.vocabulary, model.hidden), "head")


def block_parameters(model: ModelSpec, layer: int) -> Iterator[Parameter]:
    """The parameters of one block."""
    prefix = f"layers.{layer}"
    yield Parameter(f"{prefix}.attention_norm.weight", (model.hidden,), "norm", layer)
    attention = _latent_attention(model) if model.latent else _grouped_attention(model)
    for name, shape in attention:
        role: Role = "norm" if "norm" in name else "attention"
        yield Parameter(f"{prefix}.attention.{name}", shape, role, layer)
    yield Parameter(f"{prefix}.feed_forward_norm.weight", (model.hidden,), "norm", layer)
    if not model.is_expert_layer(layer):
        for name, shape in _swiglu(model.hidden, model.feed_forward):
            yield Parameter(f"{prefix}.feed_forward.{name}", shape, "feed_forward", layer)
        return
    experts = model.experts
    assert experts is not None
    yield Parameter(f"{prefix}.feed_forward.router.weight", (experts.count, model.hidden), "router", layer)
    if experts.selection_bias:
        yield Parameter(f"{prefix}.feed_forward.router.bias", (experts.count,), "router", layer)
    for name, shape in _swiglu(model.hidden, experts.feed_forward):
        stacked = name.removesuffix(".weight")
        yield Parameter(f"{prefix}.feed_forward.experts.{stacked}", (experts.count, *shape), "expert", layer)
    if experts.shared:
        for name, shape in _swiglu(model.hidden, experts.shared * experts.feed_forward):
            yield Parameter(f"{prefix}.feed_forward.shared.{name}", shape, "feed_forward", layer)


def parameter_count(model: ModelSpec) -> int:
    """How many parameters the model has; exact."""
    return sum(parameter.size for parameter in parameters(model))


def active_parameter_count(model: ModelSpec) -> int:
    """How many of them one token uses: of the routed experts only the chosen ones."""
    if model.experts is None:
        return parameter_count(model)
    share = model.experts.active, model.experts.count
    return sum(p.size * share[0] // share[1] if p.role == "expert" else p.size for p in parameters(model))


def _swiglu(hidden: int, width: int) -> list[tuple[str, tuple[int, ...]]]:
    return [
        ("gate.weight", (width, hidden)),
        ("up.weight", (width, hidden)),
        ("down.weight", (hidden, width)),
    ]


def _grouped_attention(model: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    query, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    for name, width in (("query", query), ("key", kv), ("value", kv)):
        yield f"{name}.weight", (width, model.hidden)
        if model.qkv_bias:
            yield f"{name}.bias", (width,)
    yield "output.weight", (model.hidden, query)
    if model.output_bias:
        yield "output.bias", (model.hidden,)
    if model.qk_norm:
        yield "query_norm.weight", (model.head_dim,)
        yield "key_norm.weight", (model.head_dim,)


def _latent_attention(model: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    latent = model.latent
    assert latent is not None
    query_width = model.heads * (latent.nope_head_dim + latent.rope_head_dim)
    if latent.query_rank:
        yield "query_down.weight", (latent.query_rank, model.hidden)
        yield "query_down_norm.weight", (latent.query_rank,)
        yield "query_up.weight", (query_width, latent.query_rank)
    else:
        yield "query.weight", (query_width, model.hidden)
    yield "kv_down.weight", (latent.kv_rank + latent.rope_head_dim, model.hidden)
    yield "kv_down_norm.weight", (latent.kv_rank,)
    yield "kv_up.weight", (model.heads * (latent.nope_head_dim + latent.value_head_dim), latent.kv_rank)
    yield "output.weight", (model.hidden, model.heads * latent.value_head_dim)
