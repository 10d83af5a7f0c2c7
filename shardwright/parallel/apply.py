"""Puts a Layout on a model, in one stated order.

1. build       on the meta device: names and shapes, no memory. (Built with memory, a model that fits only when
               sharded would not survive its own construction.)
2. materialise on this rank's device, in the type in which the layout keeps weights, each value a function of
               (seed, name, position). (Filled before it is known what a rank holds, every rank would pay for all.)
3. data        gradient buckets, last: they hold views of the final gradients. (Made earlier, a later step that
               replaces parameters would leave them summing tensors that nobody uses.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardwright.model import Decoder, build, materialise
from shardwright.parallel.data import GradientSync
from shardwright.parallel.world import World
from shardwright.spec import BadInput, Layout, ModelSpec


@dataclass(frozen=True)
class Applied:
    """A model ready to train on this rank."""

    model: Decoder
    gradients: GradientSync


def apply(
    spec: ModelSpec, layout: Layout, world: World, *, seed: int, weights: torch.dtype, compute: torch.dtype
) -> Applied:
    """The model, spread as the layout says, with its first weights."""
    engine_runs(layout)
    model = build(spec)
    materialise(model, seed=seed, device=world.device, dtype=weights)
    model.compute_dtype = compute
    group = dist.group.WORLD if world.size > 1 else None
    return Applied(model, GradientSync(model.parameters(), group))


def engine_runs(layout: Layout) -> None:
    """Refuse what can be planned and priced but not yet run."""
    run_today: dict[str, tuple[object, ...]] = {
        "zero": (0,),
        "tp": (1,),
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
