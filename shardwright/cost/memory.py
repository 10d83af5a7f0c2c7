"""Memory of one rank while it trains: what the engine keeps, term by term.

Covers the layouts that the engine runs: replicated data parallelism, every recipe of `layout.state`. State is exact.
Activations follow the tensors that autograd keeps for each operation of `shardwright.model`, read off its modules.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.spec import RunSpec, parameter_count
from shardwright.spec.model import ModelSpec

WEIGHT_BYTES = {"16": 2, "18": 4, "8": 2, "fp32": 4}
OPTIMIZER_BYTES = {"16": 12, "18": 8, "8": 4, "fp32": 8}
COMPUTE_BYTES = {"bf16": 2, "fp32": 4}


LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**28}
"""Logits that the loss holds at once, by device: a corner of its memory, and enough for products at full speed."""


@dataclass(frozen=True)
class Memory:
    """Bytes of the fullest rank at the step's peak."""

    weights: int
    """The model's parameters."""
    gradients: int
    """Their gradients."""
    optimizer: int
    """Moments, and masters where the recipe keeps them."""
    activations: int
    """What forward keeps for backward, of one microbatch."""
    logits: int
    """Logits of one slice, and the gradients that the loss hands on."""
    buffers: int
    """Copies that live for a moment: fp32 gradients while they are summed or applied, bf16 weights."""

    @property
    def total(self) -> int:
        """All of it at once."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.buffers


def memory_of(run: RunSpec, device: str) -> Memory:
    """What one rank of a resolved run holds on a `cpu` or `cuda` device."""
    layout, model = run.layout, run.model
    count = parameter_count(model)
    width = COMPUTE_BYTES[layout.precision]
    tokens = layout.microbatch * run.data.sequence
    weights = WEIGHT_BYTES[layout.state] * count
    activations = tokens * activation_bytes_per_token(model, width, device)
    rows = max(1, min(tokens, LOGITS_AT_ONCE[device] // model.vocabulary))
    head = model.vocabulary * model.hidden
    # The CPU's loss holds logits and their softmax in fp32 beside them, the GPU's works in place; both hold the head's
    # gradient in fp32 and once more in its own type.
    logits = rows * model.vocabulary * (width + (4 if device == "cpu" else 0))
    logits += tokens * model.hidden * width + head * (4 + width)
    copies = {"16": 4 * count, "18": 2 * count, "8": 4 * count if layout.data_ranks > 1 else 0, "fp32": 0}[layout.state]
    # The optimizer's fp32 gradients come when activations are gone: only the larger of the two counts.
    spare = 0 if layout.state == "18" else activations + logits
    return Memory(
        weights=weights,
        gradients=weights,
        optimizer=OPTIMIZER_BYTES[layout.state] * count,
        activations=activations,
        logits=logits,
        buffers=max(0, copies - spare),
    )


def activation_bytes_per_token(model: ModelSpec, width: int, device: str) -> int:
    """Bytes that autograd keeps a token from embedding to loss, with `width` bytes an activation."""
    blocks = sum(_block_bytes(model, layer, width, device) for layer in range(model.layers))
    # After the blocks: the last norm's input, the hidden states, and the loss's gradient of them.
    return blocks + _norm_bytes(model.hidden, width, device) + 2 * model.hidden * width


def _norm_bytes(size: int, width: int, device: str) -> int:
    """A norm keeps its input and a root mean square; the CPU's is made of parts, and keeps the quotient too."""
    return size * width * (2 if device == "cpu" else 1) + 4


def _block_bytes(model: ModelSpec, layer: int, width: int, device: str) -> int:
    query, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    # Two norms; the projections after them keep the normed values.
    kept = 2 * (_norm_bytes(model.hidden, width, device) + model.hidden * width)
    # Attention keeps queries, keys, values, its output twice (as heads, as rows) and a log-sum-exp a head.
    kept += (3 * query + 2 * kv) * width + 4 * model.heads
    if model.qk_norm:
        kept += _norm_bytes(query, width, device) + _norm_bytes(kv, width, device)
    if not model.is_expert_layer(layer):
        return kept + 4 * model.feed_forward * width  # gate, silu(gate), up, their product
    experts = model.experts
    assert experts is not None
    # Each chosen expert keeps its copy of the token, its network's inner values and its output; the router its scores.
    kept += experts.active * (2 * model.hidden + 4 * experts.feed_forward) * width + 4 * 4 * experts.count
    return kept + 4 * experts.shared * experts.feed_forward * width
