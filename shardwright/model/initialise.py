"""First weights: each value a function of (seed, parameter name, position in the parameter).

torch's own generators are sequences: to know the millionth value one must draw a million, and a CPU and a GPU draw
different ones. Here every element hashes its own index, so a rank that holds rows 4096 to 8191 fills just those, and
every layout on every device starts from the same model.
"""

from __future__ import annotations

import hashlib
from math import pi, sqrt

import torch
from torch import Tensor

from shardwright.model.decoder import Decoder
from shardwright.spec import ModelSpec

CHUNK = 2**22
"""Elements filled at once; bounds the memory of the arithmetic."""


def build(spec: ModelSpec) -> Decoder:
    """The model on the meta device: names and shapes, no memory."""
    with torch.device("meta"):
        return Decoder(spec)


def materialise(model: Decoder, *, seed: int, device: torch.device | str, dtype: torch.dtype = torch.float32) -> None:
    """Give a meta-device model memory on a device and its first weights, in place."""
    model.to(dtype).to_empty(device=device)
    for name, parameter in model.named_parameters():
        fill(parameter.data, name, seed=seed, layers=model.spec.layers, tied=model.spec.tied_embeddings)


def standard_deviation(name: str, shape: tuple[int, ...], *, layers: int, tied: bool) -> float:
    """How widely a matrix's first values spread.

    1/√inputs, so that outputs are as large as inputs at every width (0.016 at 4,096, 0.072 at 192; a fixed 0.02 makes
    Adam's first steps a tenth of each weight in a small model). Projections that write into the residual stream have
    1/√(2·layers) of that, so that the stream does not grow with depth (GPT-2). Embeddings are looked up, not summed
    over: 1, unless the head shares them.
    """
    if name == "embedding.weight" and not tied:
        return 1.0
    into_residual = name.endswith(("output.weight", "down.weight", "experts.down"))
    return shape[-1] ** -0.5 / (sqrt(2 * layers) if into_residual else 1.0)


@torch.no_grad()
def fill(
    values: Tensor,
    name: str,
    *,
    seed: int,
    layers: int,
    tied: bool,
    shape: tuple[int, ...] | None = None,
    region: tuple[slice, ...] | None = None,
) -> None:
    """A parameter's first values, by its name: norms 1, biases 0, the rest normal.

    Where `values` is only a part, `shape` is the whole parameter's and `region` says which rows and columns it holds.
    """
    shape = shape or tuple(values.shape)
    if "norm" in name:
        values.fill_(1.0)
    elif name.endswith("bias"):
        values.zero_()
    else:
        deviation = standard_deviation(name, shape, layers=layers, tied=tied)
        region = region or tuple(slice(0, size) for size in shape)
        rows = max(1, CHUNK // max(1, values[:1].numel()))
        for start in range(0, len(values), rows):
            stop = min(start + rows, len(values))
            index = positions(
                (slice(region[0].start + start, region[0].start + stop), *region[1:]), shape, values.device
            )
            values[start:stop] = (normal(index, name, seed) * deviation).to(values.dtype)


def positions(region: tuple[slice, ...], shape: tuple[int, ...], device: torch.device) -> Tensor:
    """The place of each element of a region in the whole parameter, counted row by row."""
    index = torch.zeros((), dtype=torch.int64, device=device)
    for span, size in zip(region, shape):
        index = index[..., None] * size + torch.arange(span.start, span.stop, device=device)
    return index


def normal(index: Tensor, name: str, seed: int) -> Tensor:
    """Standard normal values at these positions of a named parameter, fp32 (Box–Muller on a hash of the position)."""
    key = int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little", signed=True)
    bits = _mix(index * _GOLDEN + key)
    radius = (((bits >> 40) & 0xFFFFFF).float() + 0.5) / 2**24
    angle = ((bits & 0xFFFFFF).float() + 0.5) / 2**24
    return (-2 * radius.log()).sqrt() * (2 * pi * angle).cos()


def _signed(value: int) -> int:
    """A 64-bit constant as the signed number that torch's int64 holds; products wrap around either way."""
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele, Lea & Flood, 2014); shifts made logical by masking the sign's copies."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _FIRST
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _SECOND
    return x ^ ((x >> 31) & (2**33 - 1))
