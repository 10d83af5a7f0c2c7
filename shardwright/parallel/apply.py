"""Puts a Layout on a model, in one stated order.

1. build       on the meta device: names and shapes, no memory; in a pipeline, only this rank's stages. (Built with
               memory, a model that fits only when spread would not survive its own construction.)
2. tensor      matrices split over the tensor ranks; ZeRO cuts what is left of them. (After sharding, a matrix would
               be cut along rows that its neighbour in a product does not share.)
3. shard       ZeRO over the data ranks, while still on meta. (After materialising, every rank would have paid for
               the whole model first.)
4. materialise on this rank's device, in the type in which the layout keeps weights, each value a function of
               (seed, name, position): only what this rank holds. (Before sharding, all ranks would fill all of it.)
5. gradients   for replicated ranks: their buckets hold views of the final gradients. (Made earlier, a later step that
               replaces parameters would leave them summing tensors that nobody uses.)
6. pipeline    last: torch's stages look at the module that they are given, and treat a sharded one as such. (Before
               sharding, it would take its gradients for whole ones and never reduce them.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shardwright.cost import balanced_stages, held_stages
from shardwright.model import Decoder, Stage, build, build_stage
from shardwright.model.initialise import fill
from shardwright.parallel.data import GradientSync
from shardwright.parallel.engine import Engine, Staged, Whole
from shardwright.parallel.mesh import Mesh
from shardwright.parallel.pipeline import Pipeline, check_microbatches
from shardwright.parallel.sharded import ShardedGradients, shard
from shardwright.parallel.shards import local, region
from shardwright.parallel.tensor import split
from shardwright.parallel.world import World
from shardwright.spec import BadInput, RunSpec


@dataclass(frozen=True)
class Applied:
    """A model ready to train on this rank."""

    engine: Engine
    mesh: Mesh
    models: tuple[Decoder, ...]
    """The whole model, or this rank's stages."""


def apply(run: RunSpec, world: World, *, weights: torch.dtype, compute: torch.dtype) -> Applied:
    """A resolved run's model, spread as its layout says, with its first weights."""
    engine_runs(run)
    layout, mesh = run.layout, Mesh.of(run.layout, world)
    stages: dict[int, Stage] = {}
    if layout.pp > 1:
        ranges = balanced_stages(run.model, layout.pp * layout.interleave, run.data.sequence)
        stages = {
            number: build_stage(run.model, ranges[number]) for number in held_stages(layout, mesh.coordinate("pp"))
        }
    models: tuple[Decoder, ...] = tuple(stages.values()) or (build(run.model),)
    is_sharded = layout.zero > 0 and mesh.grid is not None
    for model in models:
        model.to(weights).compute_dtype = compute
        if layout.tp > 1:
            split(model, mesh["tp"])
        if is_sharded:
            shard(model, layout, mesh, compute=compute)
        materialise_parts(model, seed=run.seed, device=world.device)
    parameters = [parameter for model in models for parameter in model.parameters()]
    gradients = ShardedGradients(models, layout) if is_sharded else GradientSync(parameters, mesh.data_group)
    if layout.pp == 1:
        return Applied(Whole(models[0], gradients, layout.microbatch, world.device), mesh, models)
    pipeline = Pipeline(
        stages, layout, microbatches=run.batch.accumulation or 1, sequence=run.data.sequence,
        group=mesh["pp"].get_group(), device=world.device, sequence_ranks=layout.tp,
    )  # fmt: skip
    return Applied(Staged(pipeline, gradients, world.device), mesh, models)


def materialise_parts(model: Decoder, *, seed: int, device: torch.device) -> None:
    """Give a model memory and its first weights: of each parameter, what this rank holds."""
    model.to_empty(device=device)
    spec = model.spec
    for name, parameter in model.named_parameters():
        fill(
            local(parameter.data), name, seed=seed, layers=spec.layers, tied=spec.tied_embeddings,
            shape=tuple(parameter.shape), region=region(parameter),
        )  # fmt: skip


def engine_runs(run: RunSpec) -> None:
    """Refuse what can be planned and priced but not yet run."""
    layout = run.layout
    if layout.tp > 1 and run.model.experts is not None:
        raise BadInput("layout.tp", layout.tp, rule="experts cannot be split over tensor ranks yet", fix="Use tp = 1")
    run_today: dict[str, tuple[object, ...]] = {
        "sp": (True,),
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
    if layout.pp > 1:
        check_microbatches(layout, run.batch.accumulation or 1)
