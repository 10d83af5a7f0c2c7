"""Puts a Layout on a model, in one stated order.

1. build       on the meta device: names and shapes, no memory. (Built with memory, a model that fits only when
               sharded would not survive its own construction.)
2. tensor      matrices split over the tensor ranks; ZeRO cuts what is left of them. (After sharding, a matrix would
               be cut along rows that its neighbour in a product does not share.)
3. shard       ZeRO over the data ranks, while still on meta. (After materialising, every rank would have paid for
               the whole model first.)
4. materialise on this rank's device, in the type in which the layout keeps weights, each value a function of
               (seed, name, position): only what this rank holds. (Before sharding, all ranks would fill all of it.)
5. gradients   last, for replicated ranks: their buckets hold views of the final gradients. (Made earlier, a later
               step that replaces parameters would leave them summing tensors that nobody uses.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shardwright.model import Decoder, build
from shardwright.model.initialise import fill
from shardwright.parallel.data import GradientSync
from shardwright.parallel.mesh import Mesh
from shardwright.parallel.sharded import ShardedGradients, shard
from shardwright.parallel.shards import local, region
from shardwright.parallel.tensor import split
from shardwright.parallel.world import World
from shardwright.spec import BadInput, Layout, ModelSpec


@dataclass(frozen=True)
class Applied:
    """A model ready to train on this rank."""

    model: Decoder
    mesh: Mesh
    gradients: GradientSync | ShardedGradients


def apply(
    spec: ModelSpec, layout: Layout, world: World, *, seed: int, weights: torch.dtype, compute: torch.dtype
) -> Applied:
    """The model, spread as the layout says, with its first weights."""
    engine_runs(layout, spec)
    mesh = Mesh.of(layout, world)
    model = build(spec).to(weights)
    model.compute_dtype = compute
    if layout.tp > 1:
        split(model, mesh["tp"])
    is_sharded = layout.zero > 0 and mesh.grid is not None
    if is_sharded:
        shard(model, layout, mesh, compute=compute)
    materialise_parts(model, seed=seed, device=world.device)
    if is_sharded:
        return Applied(model, mesh, ShardedGradients(model, layout))
    return Applied(model, mesh, GradientSync(model.parameters(), mesh.data_group))


def materialise_parts(model: Decoder, *, seed: int, device: torch.device) -> None:
    """Give a model memory and its first weights: of each parameter, what this rank holds."""
    model.to_empty(device=device)
    spec = model.spec
    for name, parameter in model.named_parameters():
        fill(
            local(parameter.data), name, seed=seed, layers=spec.layers, tied=spec.tied_embeddings,
            shape=tuple(parameter.shape), region=region(parameter),
        )  # fmt: skip


def engine_runs(layout: Layout, model: ModelSpec) -> None:
    """Refuse what can be planned and priced but not yet run."""
    if layout.tp > 1 and model.experts is not None:
        raise BadInput("layout.tp", layout.tp, rule="experts cannot be split over tensor ranks yet", fix="Use tp = 1")
    run_today: dict[str, tuple[object, ...]] = {
        "sp": (True,),
        "pp": (1,),
        "cp": (1,),
        "ep": (1,),
        "recompute": ("none",),
        "precision": ("bf16", "fp32"),
        "state": ("16", "18", "8", "fp32"),
        "offload": ("none",),
        "compile": (False,),
    }
    for name, values in run_today.items():
        value = getattr(layout, name)
        if value not in values:
            choices = " or ".join(str(choice).lower() for choice in values)
            raise BadInput(
                f"layout.{name}", value, rule="can be planned but not yet trained", fix=f"Use {name} = {choices}"
            )
