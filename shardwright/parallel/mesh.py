"""One mesh of all ranks, its axes named.

Ranks are numbered so that the chattiest axis is innermost: neighbours in `tp` have neighbouring numbers and share a
node; pipeline stages, which speak least, lie furthest apart.

    rank = ((((pp · dp_replicate) + …) · dp_shard + …) · cp + …) · tp + …
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shardwright.parallel.world import World
from shardwright.spec import Layout

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Outermost first."""


@dataclass(frozen=True)
class Mesh:
    """All ranks as a grid, and where this one stands in it."""

    layout: Layout
    """The degrees it was made from."""
    grid: DeviceMesh | None
    """torch's mesh; None in a world of one."""
    data_group: dist.ProcessGroup | None
    """The ranks that differ from this one in their data alone: dp_replicate × dp_shard; None where it is alone."""

    @classmethod
    def of(cls, layout: Layout, world: World) -> Mesh:
        """The mesh of a layout; every rank must call it, for its groups are made together."""
        if world.size == 1:
            return cls(layout, None, None)
        replicate, shard = data_degrees(layout)
        grid = init_device_mesh(
            world.device.type, (layout.pp, replicate, shard, layout.cp, layout.tp), mesh_dim_names=AXES
        )
        data_group = grid["dp_replicate", "dp_shard"]._flatten("dp").get_group() if layout.data_ranks > 1 else None
        return cls(layout, grid, data_group)

    def __getitem__(self, axes: str | tuple[str, ...]) -> DeviceMesh:
        """The part of the mesh along some axes, through this rank."""
        assert self.grid is not None, "a world of one has no axes"
        return self.grid[axes]

    def coordinate(self, axis: str) -> int:
        """This rank's place along an axis."""
        return 0 if self.grid is None else self.grid.get_local_rank(axis)

    def sum_over_data(self, values: Tensor) -> Tensor:
        """The sum over the data ranks, in place; ranks that compute the same tokens together count them once."""
        if self.data_group is not None:
            dist.all_reduce(values, group=self.data_group)
        return values

    def union_of_stages(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """On rank 0, what all stages of its pipeline hold together; elsewhere, what it was given."""
        if self.layout.pp == 1 or self.coordinate("tp") or self.data_rank:
            return tensors
        group, here = self["pp"].get_group(), self.coordinate("pp") == 0
        gathered: list[dict[str, Tensor] | None] | None = [None] * self.layout.pp if here else None
        dist.gather_object(tensors, gathered, group=group, group_dst=0)
        if gathered is None:
            return tensors
        return {name: tensor for part in gathered if part is not None for name, tensor in part.items()}

    @property
    def data_rank(self) -> int:
        """Which share of each global batch this rank reads."""
        return self.coordinate("dp_replicate") * data_degrees(self.layout)[1] + self.coordinate("dp_shard")

    @property
    def speaks_for_its_data(self) -> bool:
        """Whether this rank is the one, of all that compute the same tokens, whose loss is counted."""
        return self.coordinate("tp") == 0


def data_degrees(layout: Layout) -> tuple[int, int]:
    """How the data ranks divide: groups that replicate, ranks that shard inside a group."""
    shard = layout.shard if layout.shard is not None else layout.data_ranks if layout.zero else 1
    return layout.data_ranks // shard, shard
