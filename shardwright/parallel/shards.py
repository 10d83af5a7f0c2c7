"""A parameter, or the part of it that this rank holds.

Under ZeRO-3 and tensor parallelism parameters are DTensors. Updates, norms and files work on plain tensors: what is
elementwise needs only the local part, and what goes to disk needs the whole. These functions go between the two and
return plain tensors unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from shardwright.parallel.mesh import Mesh

COPY = "@copy"
"""Marks the name of a second copy of a parameter (a tied embedding table in a pipeline's last stage): trained like the
first, counted and saved once."""


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradient(parameter: Tensor) -> Tensor | None:
    """The gradient of the part that this rank holds; partial sums over tensor ranks are completed first."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        gradient = gradient.redistribute(placements=parameter.placements)
    return None if gradient is None else local(gradient)


def whole(part: Tensor, parameter: Tensor) -> Tensor:
    """The full tensor of which every rank holds the part that it holds of `parameter`; all ranks must call it."""
    spread = like(part, parameter)
    return spread.full_tensor() if isinstance(spread, DTensor) else spread


def like(part: Tensor, parameter: Tensor) -> Tensor:
    """A plain local tensor, spread as a parameter is: shares its memory."""
    if not isinstance(parameter, DTensor):
        return part
    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def region(tensor: Tensor) -> tuple[slice, ...]:
    """Which rows and columns of the whole this rank holds, one slice a dimension.

    Tensor parallelism cuts first and ZeRO cuts what is left, whatever the order of the mesh's axes; torch marks the
    second cut of one dimension as a strided shard.
    """
    ranges = [(0, size) for size in tensor.shape]
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        assert mesh.mesh_dim_names is not None
        names = mesh.mesh_dim_names
        for axis in sorted(range(mesh.ndim), key=lambda axis: names[axis] != "tp"):
            dimension = getattr(tensor.placements[axis], "dim", None)
            if dimension is None:  # replicated along this axis
                continue
            first, length = ranges[dimension]
            each = -(-length // mesh.size(axis))  # as torch.chunk cuts: the last part may be short, or empty
            begin = min(mesh.get_local_rank(axis) * each, length)
            ranges[dimension] = first + begin, min(each, length - begin)
    return tuple(slice(first, first + length) for first, length in ranges)


def copies(tensor: Tensor, mesh: Mesh) -> int:
    """How many ranks hold each element of a parameter, for sums over all ranks that must count it once."""
    holders = mesh.layout.world // mesh.layout.pp
    if not isinstance(tensor, DTensor):
        return holders
    grid = tensor.device_mesh
    sharded = [grid.size(axis) for axis, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    return holders // prod(sharded)


def global_norm(parameters: Mapping[str, Tensor], gradients: list[Tensor], mesh: Mesh | None) -> Tensor:
    """The norm of all gradients of the model: each element once, one sum over all ranks.

    `gradients` are this rank's parts of the named parameters' gradients, in their order. Squares are added in fp64:
    millions of them in fp32 would lose the sixth digit, and no two layouts the same.
    """
    norms = torch.stack(torch._foreach_norm(gradients, 2, torch.float64))
    if mesh is None or mesh.grid is None:
        return norms.square().sum().sqrt().float()
    shares = [0.0 if name.endswith(COPY) else 1.0 / copies(one, mesh) for name, one in parameters.items()]
    weights = torch.tensor(shares, dtype=norms.dtype, device=norms.device)
    total = (norms.square() * weights).sum()
    torch.distributed.all_reduce(total)
    return total.sqrt().float()
