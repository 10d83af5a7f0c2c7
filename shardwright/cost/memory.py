"""Memory of one rank while it trains: what the engine keeps, term by term.

Covers the layouts that the engine runs: data parallelism replicated and sharded, tensor parallelism, pipelines, every
recipe of `layout.state`. State is exact.
Activations follow the tensors that autograd keeps for each operation of `shardwright.model`, read off its modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.cost.stages import balanced_stages, held_stages
from shardwright.spec import RunSpec, parameters
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
    """What the fullest rank of a resolved run holds on a `cpu` or `cuda` device."""
    layout = run.layout
    if layout.pp == 1:
        return _rank_memory(run, device, [range(run.model.layers)], live=1)
    cuts = balanced_stages(run.model, layout.pp * layout.interleave, run.data.sequence)
    microbatches = run.batch.accumulation or 1
    # GPipe keeps every microbatch until backward begins; the others at most one for each rank after this one.
    live = microbatches if layout.schedule == "gpipe" else min(microbatches, layout.pp)
    ranks = ([cuts[stage] for stage in held_stages(layout, rank)] for rank in range(layout.pp))
    return max((_rank_memory(run, device, held, live) for held in ranks), key=lambda memory: memory.total)


def _rank_memory(run: RunSpec, device: str, held: list[range], live: int) -> Memory:
    """What a rank holds that has these layers and keeps so many microbatches at once."""
    layout, model = run.layout, run.model
    blocks, ends = parameters_per_tensor_rank(model, layout.tp, held)
    count, block = sum(blocks) + ends, max(blocks)
    width, kept = COMPUTE_BYTES[layout.precision], WEIGHT_BYTES[layout.state]
    tokens = layout.microbatch * run.data.sequence
    layers = [layer for stage in held for layer in stage]
    has_head = any(stage.stop == model.layers for stage in held)
    activations = live * tokens * activation_bytes_per_token(model, width, device, layout.tp, layers)
    logits = 0
    if has_head:
        vocabulary = model.vocabulary // layout.tp
        rows = max(1, min(tokens, LOGITS_AT_ONCE[device] // vocabulary))
        # The CPU's loss holds logits and their softmax in fp32 beside them, the GPU's works in place; both hold the
        # head's gradient in fp32 and once more in its own type.
        logits = rows * vocabulary * (width + (4 if device == "cpu" or layout.tp > 1 else 0))
        logits += tokens * model.hidden * width + vocabulary * model.hidden * (4 + width)
    # Copies that the optimizer makes come when activations are gone: only what goes beyond them counts.
    shards = layout.shard or layout.data_ranks if layout.zero else 1
    updated = {"16": 4, "18": 0, "8": 0, "fp32": 0}[layout.state] * count // shards
    buffers = max(0, updated - activations - logits)
    if layout.state == "18":
        buffers += 2 * count  # bf16 copies of the weights in use
    if layout.pp > 1:
        # torch's pipeline keeps room for every microbatch that comes in, and for every gradient that comes back.
        buffers += 2 * (run.batch.accumulation or 1) * len(held) * tokens * model.hidden * width // layout.tp
    gradients = kept * count // shards
    if layout.zero:
        # Gathered weights: all of them, or (stage 3) the ends and two blocks; and one block's gradients in fp32, twice:
        # as they were computed and as they travel.
        gathered = count if layout.zero < 3 or layout.pp > 1 else ends + 2 * block
        buffers += width * gathered + (width + 4) * max(block, ends)
        # Stage 1 adds up whole gradients between microbatches; in a pipeline all stages do.
        if (run.batch.accumulation or 1) > 1 and (layout.zero == 1 or layout.pp > 1):
            gradients += width * count
    return Memory(
        weights=kept * count // shards,
        gradients=gradients,
        optimizer=OPTIMIZER_BYTES[layout.state] * count // shards,
        activations=activations,
        logits=logits,
        buffers=buffers,
    )


def parameters_per_tensor_rank(model: ModelSpec, tp: int, held: list[range]) -> tuple[list[int], int]:
    """Parameters that a tensor rank holds of each block of these stages, and of what stands before and after them all.

    Matrices are split, norms are not. A tied embedding table stands in the first stage and again in the last.
    """
    first, last = any(stage.start == 0 for stage in held), any(stage.stop == model.layers for stage in held)
    blocks = {layer: 0 for stage in held for layer in stage}
    ends = 0
    for parameter in parameters(model):
        size = parameter.size // tp if len(parameter.shape) > 1 else parameter.size
        if parameter.layer is not None:
            if parameter.layer in blocks:
                blocks[parameter.layer] += size
        elif parameter.role == "embedding":
            ends += size * (first or (last and model.tied_embeddings))
        elif last:
            ends += size
    return list(blocks.values()), ends


def activation_bytes_per_token(
    model: ModelSpec, width: int, device: str, tp: int = 1, layers: Sequence[int] | None = None
) -> int:
    """Bytes that autograd keeps a token in these layers (left out: in all), with `width` bytes an activation.

    Tensor ranks share everything (heads, columns, positions) but the gathered inputs of each pair of matrices.
    """
    layers = range(model.layers) if layers is None else layers
    blocks = sum(_block_bytes(model, layer, width, device) for layer in layers)
    gathered = 2 * len(layers) * model.hidden * width
    ends = 0
    if model.layers - 1 in layers:
        # After the blocks: the last norm's input, the hidden states, and the loss's gradient of them.
        ends = _norm_bytes(model.hidden, width, device) // tp + 2 * model.hidden * width
    return (blocks - gathered) // tp + gathered + ends


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
