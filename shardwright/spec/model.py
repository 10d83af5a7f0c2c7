"""What a model is: a decoder, dense or with experts, described without torch.

`ModelSpec` holds the sizes and switches; `shardwright.spec.parameters` lists every weight that follows from
them. A spec comes from the catalogue (`llama3-8b`), from a Hugging Face folder, or from fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shardwright.spec.errors import BadInput
from shardwright.spec.fields import build, require


@dataclass(frozen=True)
class Rope:
    """Rotary positions (Su et al., 2021), with the scalings that published models use."""

    theta: float = 10_000.0
    """Base of the geometric series of wavelengths."""
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    """How wavelengths are stretched beyond the trained context: not, all alike, or by band."""
    factor: float = 1.0
    """By how much the context is stretched."""
    original_context: int = 0
    """Context before stretching; the bands of `llama3` and `yarn` are placed by it."""
    low_frequency_factor: float = 1.0
    """`llama3`: wavelengths longer than original_context / this are stretched in full."""
    high_frequency_factor: float = 4.0
    """`llama3`: wavelengths shorter than original_context / this are left alone."""
    beta_fast: float = 32.0
    """`yarn`: dimensions that turn more often than this over the original context are left alone."""
    beta_slow: float = 1.0
    """`yarn`: dimensions that turn less often than this are stretched in full."""
    attention_factor: float = 0.0
    """`yarn`: multiplies cosines and sines; 0 means the paper's 0.1 ln(factor) + 1."""
    softmax_factor: float = 1.0
    """Multiplies attention's 1/√head_dim: DeepSeek-V3 scales whole heads here, (0.1 ln(factor) + 1)², where `yarn`
    scales the rotated part."""

    def __post_init__(self) -> None:
        require(self.theta > 1, "theta", self.theta, "must be greater than 1")
        require(self.factor >= 1, "factor", self.factor, "must be at least 1")
        if self.scaling in ("llama3", "yarn"):
            require(
                self.original_context > 0,
                "original_context",
                self.original_context,
                f'scaling "{self.scaling}" places its bands by it, so it must be positive',
            )
        if self.scaling == "llama3":
            require(
                self.high_frequency_factor > self.low_frequency_factor,
                "high_frequency_factor",
                self.high_frequency_factor,
                f"must be greater than low_frequency_factor = {self.low_frequency_factor}",
            )


@dataclass(frozen=True)
class Experts:
    """A mixture-of-experts feed-forward layer: many small networks, a few used by each token."""

    count: int
    """Routed experts a layer."""
    active: int
    """Routed experts that each token uses (top-k)."""
    feed_forward: int
    """Width of one expert."""
    shared: int = 0
    """Experts that every token uses, beside the routed ones; together they are one network of this many widths."""
    dense_layers: int = 0
    """How many of the first layers are dense instead."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    """How router logits become scores."""
    normalize: bool = True
    """Divide the chosen scores by their sum."""
    scale: float = 1.0
    """Multiplies the chosen scores after normalising."""
    groups: int = 1
    """Experts lie in this many equal groups (one a node, say) …"""
    active_groups: int = 1
    """… and a token may use experts of at most this many of them."""
    balance_loss: float = 0.0
    """Coefficient of the auxiliary load-balancing loss (Fedus et al., 2021)."""
    selection_bias: bool = False
    """A bias on each expert's score, for choosing only: balance without a loss (DeepSeek-V3)."""

    def __post_init__(self) -> None:
        require(self.count >= 1, "count", self.count, "must be at least 1")
        require(
            1 <= self.active <= self.count,
            "active",
            self.active,
            f"a token uses at least 1 and at most all {self.count} experts",
        )
        require(self.feed_forward >= 1, "feed_forward", self.feed_forward, "must be at least 1")
        require(self.shared >= 0, "shared", self.shared, "must not be negative")
        require(
            self.groups >= 1 and self.count % self.groups == 0,
            "groups",
            self.groups,
            f"must divide the {self.count} experts",
        )
        require(
            1 <= self.active_groups <= self.groups,
            "active_groups",
            self.active_groups,
            f"must lie between 1 and groups = {self.groups}",
        )
        reachable = self.count // self.groups * self.active_groups
        require(
            self.active <= reachable,
            "active",
            self.active,
            f"active_groups {self.active_groups} of {self.groups} groups hold only {reachable} experts",
        )


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): queries, keys and values pass through narrow projections."""

    query_rank: int
    """Width of the queries' narrow projection; 0 for none."""
    kv_rank: int
    """Width of the narrow projection that keys and values share: what a cache holds."""
    nope_head_dim: int
    """Part of each query and key head that carries no position."""
    rope_head_dim: int
    """Part that carries the rotary position; one key part is shared by all heads."""
    value_head_dim: int
    """Width of each value head."""

    def __post_init__(self) -> None:
        require(self.query_rank >= 0, "query_rank", self.query_rank, "must not be negative")
        for name in ("kv_rank", "nope_head_dim", "rope_head_dim", "value_head_dim"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        require(
            self.rope_head_dim % 2 == 0, "rope_head_dim", self.rope_head_dim, "must be even: positions rotate pairs"
        )


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer: every size and switch, nothing about how it is spread or trained."""

    vocabulary: int
    """Rows of the embedding table."""
    hidden: int
    """Width of the residual stream."""
    layers: int
    """Number of blocks."""
    heads: int
    """Query heads."""
    feed_forward: int
    """Width of the SwiGLU network in a dense layer."""
    name: str = "custom"
    """Where the description came from; a label only."""
    kv_heads: int = 0
    """Key and value heads (grouped-query attention); left out, as many as `heads`."""
    head_dim: int = 0
    """Width of a query and key head; left out, hidden / heads (with `latent`, the sum of its two parts)."""
    context: int = 4096
    """Longest sequence the positions were made for."""
    norm_epsilon: float = 1e-5
    """Added to the mean square in RMSNorm."""
    tied_embeddings: bool = False
    """The output head is the embedding table."""
    qk_norm: bool = False
    """RMSNorm on each query and key head before the rotation."""
    qkv_bias: bool = False
    """Bias on the query, key and value projections."""
    output_bias: bool = False
    """Bias on the attention's output projection."""
    window: int | None = None
    """Sliding-window attention: how many positions back a token sees, itself included."""
    rope: Rope = field(default_factory=Rope)
    """Rotary positions."""
    experts: Experts | None = None
    """Mixture of experts in place of the dense network."""
    latent: LatentAttention | None = None
    """Multi-head latent attention in place of grouped-query attention."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "hidden", "layers", "heads", "feed_forward", "context"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.latent is not None:
            self._check_latent(self.latent)
        if self.head_dim == 0:
            require(
                self.hidden % self.heads == 0,
                "heads",
                self.heads,
                f"must divide hidden = {self.hidden} when head_dim is left out",
                f"Use {nearest_divisors(self.hidden, self.heads)}, or give head_dim",
            )
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        require(
            1 <= self.kv_heads <= self.heads and self.heads % self.kv_heads == 0,
            "kv_heads",
            self.kv_heads,
            f"must divide heads = {self.heads}",
            f"Use {nearest_divisors(self.heads, self.kv_heads)}",
        )
        require(
            self.head_dim >= 2 and self.head_dim % 2 == 0,
            "head_dim",
            self.head_dim,
            "rotary positions need a positive, even number",
        )
        require(self.norm_epsilon > 0, "norm_epsilon", self.norm_epsilon, "must be positive")
        if self.window is not None:
            require(self.window >= 1, "window", self.window, "must be at least 1")
        if self.experts is not None:
            require(
                0 <= self.experts.dense_layers <= self.layers,
                "experts.dense_layers",
                self.experts.dense_layers,
                f"must lie between 0 and layers = {self.layers}",
            )

    def _check_latent(self, latent: LatentAttention) -> None:
        width = latent.nope_head_dim + latent.rope_head_dim
        if self.head_dim == 0:
            object.__setattr__(self, "head_dim", width)
        require(
            self.head_dim == width,
            "head_dim",
            self.head_dim,
            f"latent attention has nope {latent.nope_head_dim} + rope {latent.rope_head_dim} = {width}",
            "Leave head_dim out",
        )
        for name in ("qk_norm", "qkv_bias", "output_bias"):
            require(not getattr(self, name), name, getattr(self, name), "does not go with latent attention")
        require(
            self.kv_heads == self.heads,
            "kv_heads",
            self.kv_heads,
            f"latent attention has as many as heads = {self.heads}",
            "Leave kv_heads out",
        )

    @classmethod
    def named(cls, name: str) -> ModelSpec:
        """A model of the catalogue: `ModelSpec.named("llama3-8b")`."""
        from shardwright.spec.catalogue import model_fields

        return build(cls, model_fields(name))

    @classmethod
    def from_huggingface(cls, folder: str) -> ModelSpec:
        """The model that a Hugging Face folder's `config.json` describes."""
        from shardwright.spec.huggingface import read_config

        return build(cls, read_config(folder))

    @classmethod
    def from_fields(cls, values: Mapping[str, Any], path: str = "model") -> ModelSpec:
        """A `[model]` table: `preset` or `hf` gives the base, every other field overrides it."""
        values = dict(values)
        preset, folder = values.pop("preset", None), values.pop("hf", None)
        if preset is not None and folder is not None:
            raise BadInput(
                f"{path}.hf", folder, rule=f'stands beside {path}.preset = "{preset}"', fix="Keep one of them"
            )
        base: dict[str, Any] = {}
        for key, source in (("preset", preset), ("hf", folder)):
            if source is not None and not isinstance(source, str):
                raise BadInput(f"{path}.{key}", source, rule="must be text in quotes")
        if preset is not None:
            from shardwright.spec.catalogue import model_fields

            base = model_fields(preset, f"{path}.preset")
        elif folder is not None:
            from shardwright.spec.huggingface import read_config

            base = read_config(folder, f"{path}.hf")
        return build(cls, _merged(base, values), path)

    def is_expert_layer(self, layer: int) -> bool:
        """Whether this block's feed-forward is a mixture of experts."""
        return self.experts is not None and layer >= self.experts.dense_layers


def _merged(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merged key by key; other values replaced."""
    merged = dict(base)
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            value = _merged(merged[key], value)
        merged[key] = value
    return merged


def nearest_divisors(number: int, near: int) -> str:
    """The divisors of a number just below and above a value, in words: `4 or 8`."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = [d for d in divisors if d <= near]
    above = [d for d in divisors if d > near]
    return " or ".join(str(d) for d in (*below[-1:], *above[:1]))
