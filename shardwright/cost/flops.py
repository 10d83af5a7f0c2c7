"""The work that a token costs, and the one definition of MFU.

Published MFU figures differ by up to a fifth for the same run, because some count embeddings, some the whole
attention square, some recomputation. Here there is one count, made of what the model has to compute and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.spec import Device, ModelSpec, parameters
from shardwright.spec.parameters import Parameter

MFU_DEFINITION = (
    "MFU: model FLOPs (6 × non-embedding matmul parameters touched by a token, the head included, + causal attention "
    "at the half that is computed; recomputation never counts) over the dense bf16 peak"
)
"""What the number means, to be printed where the number is."""


def model_flops_per_token(model: ModelSpec, sequence: int) -> float:
    """FLOPs of forward and backward for one token of a sequence of this length, averaged over its positions.

    A property of the model, not of how it is computed: padding, recomputation and masks between packed documents
    change the time a step takes, not this number.
    """
    touched = touched_parameters(model, parameters(model))
    if model.tied_embeddings:
        # Listed once, as the embedding, but the token is multiplied by it all the same.
        touched += model.vocabulary * model.hidden
    return 6 * touched + 3 * model.layers * forward_attention_flops(model, sequence)


def mfu(tokens_per_second_per_gpu: float, flops_per_token: float, device: Device | None) -> float | None:
    """Model FLOPs utilisation as a fraction of the device's dense bf16 peak; None where that peak is unknown."""
    if device is None or device.peak_bf16 is None:
        return None
    return tokens_per_second_per_gpu * flops_per_token / device.peak_bf16


def touched_parameters(model: ModelSpec, listed: Iterable[Parameter]) -> float:
    """Weights among these that one token is multiplied by; of the routed experts only the active share."""
    active_share = model.experts.active / model.experts.count if model.experts else 1.0
    return sum(
        parameter.size * (active_share if parameter.role == "expert" else 1.0)
        for parameter in listed
        if parameter.is_matmul
    )


def forward_attention_flops(model: ModelSpec, sequence: int) -> float:
    """FLOPs of QK^T and PV of one layer, forward, for the average token: two for each multiply-add."""
    if model.latent is not None:
        key_dim = model.latent.nope_head_dim + model.latent.rope_head_dim
        value_dim = model.latent.value_head_dim
    else:
        key_dim = value_dim = model.head_dim
    # Position i sees min(i, window) keys. The mean over the sequence is half of it without a window, and
    # window - window² / (2 · sequence) with one, which is the same half where the window spans the sequence.
    window = min(model.window or sequence, sequence)
    keys_seen = window - window**2 / (2 * sequence)
    return 2 * keys_seen * model.heads * (key_dim + value_dim)
