"""Rotary positions (arXiv:2104.09864) and the stretchings of published models."""

from __future__ import annotations

from math import log, pi

import torch
from torch import Tensor

from shardwright.spec import Rope


def frequencies(rope: Rope, width: int, device: torch.device) -> Tensor:
    """Radians a position for each pair of channels of a head: (width / 2,), fp32."""
    steps = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    plain = 1.0 / rope.theta**steps
    if rope.scaling == "none":
        return plain
    stretched = plain / rope.factor
    if rope.scaling == "linear":
        return stretched
    if rope.scaling == "llama3":
        turns = rope.original_context * plain / (2 * pi)
        low, high = rope.low_frequency_factor, rope.high_frequency_factor
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        return stretched * (1 - keep) + plain * keep
    # YaRN (arXiv:2309.00071): channels that turn often keep their pace, slow ones are stretched, a ramp between.
    first, last = (_channel_turning(turns, rope, width) for turns in (rope.beta_fast, rope.beta_slow))
    first, last = max(int(first), 0), min(int(-(-last // 1)), width - 1)
    ramp = (torch.arange(width // 2, dtype=torch.float32, device=device) - first) / max(last - first, 0.001)
    keep = 1 - ramp.clamp(0, 1)
    return stretched * (1 - keep) + plain * keep


def _channel_turning(turns: float, rope: Rope, width: int) -> float:
    """The (fractional) pair of channels that turns this often over the original context."""
    return width * log(rope.original_context / (turns * 2 * pi)) / (2 * log(rope.theta))


def tables(rope: Rope, width: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines for these positions: (positions, width / 2) each, fp32.

    Made anew in every forward pass: it costs microseconds, and the model needs no buffers that a sharded or
    meta-device build would have to treat specially.
    """
    angles = torch.outer(positions.float(), frequencies(rope, width, positions.device))
    factor = 1.0
    if rope.scaling == "yarn":
        factor = rope.attention_factor or 0.1 * log(rope.factor) + 1.0
    return angles.cos() * factor, angles.sin() * factor


def rotate(x_bhsk: Tensor, cos_sc: Tensor, sin_sc: Tensor) -> Tensor:
    """Turn each pair (channel c, channel c + width/2) by its position's angle; computed in fp32."""
    first, second = x_bhsk.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos_sc - second * sin_sc, second * cos_sc + first * sin_sc), dim=-1)
    return turned.to(x_bhsk.dtype)
