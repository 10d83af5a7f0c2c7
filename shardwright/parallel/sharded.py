"""ZeRO 1 to 3 and hybrid sharding: three settings of torch's FSDP2.

| stage | parameters between uses | gradients between microbatches            |
|-------|-------------------------|-------------------------------------------|
| 3     | sharded again           | sharded: one reduce-scatter a microbatch  |
| 2     | whole until the step    | sharded: one reduce-scatter a microbatch  |
| 1     | whole until the step    | whole: one reduce-scatter a step          |

With a sharding group smaller than all data ranks (hybrid sharding), shards are reduced inside the group and then over
the groups, the latter once a step. Sums, not means: the loss is already divided by the global token count.

In a pipeline torch's schedules reduce each stage's gradients once a step, so stages 2 and 3 hold whole gradients there
until then, as stage 1 does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from shardwright.model import Decoder
from shardwright.parallel.mesh import Mesh, data_degrees
from shardwright.spec import Layout

SPLIT_BACKWARD = ("zero-bubble", "zbv", "dualpipev")
"""Schedules that compute weight gradients after, and apart from, input gradients."""


def shard(model: Decoder, layout: Layout, mesh: Mesh, *, compute: torch.dtype) -> None:
    """Shard each block, then what is left (embedding, last norm, head), over the data ranks; in place, on meta."""
    # A weight gradient that comes later than its block's backward would find the parameters gone: measured, dualpipev
    # then gives wrong gradients without a word. There, stage 3 keeps them until the step ends.
    again = layout.zero == 3 and not (layout.pp > 1 and layout.schedule in SPLIT_BACKWARD)
    replicate, _ = data_degrees(layout)
    ranks = mesh["dp_replicate", "dp_shard"] if replicate > 1 else mesh["dp_shard"]
    # Block inputs are not cast: the rotation's tables are fp32 on purpose, the rest has the type it should have.
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.layers.values():
        fully_shard(block, mesh=ranks, mp_policy=policy, reshard_after_forward=again)
    # The root's parameters are needed first and last: sharding them in between would gather them twice for nothing.
    fully_shard(model, mesh=ranks, mp_policy=policy, reshard_after_forward=False)
    if layout.pp == 1:
        register_fsdp_forward_method(model, "logits")  # the other way into the model gathers parameters too
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """The modules that gather and reduce their own parameters."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


class ShardedGradients:
    """Gradients that FSDP2 reduces by itself; says after which microbatch."""

    def __init__(self, models: Sequence[Decoder], layout: Layout) -> None:
        self.models, self.zero_stage = models, layout.zero
        self.is_hybrid = data_degrees(layout)[0] > 1

    @contextmanager
    def last_backward(self, last: bool = True) -> Iterator[None]:
        """Around a backward pass: what is sent once a step is sent with the last microbatch."""
        for model in self.models:
            assert isinstance(model, FSDPModule)
            if self.zero_stage == 1:
                model.set_requires_gradient_sync(last)
            elif self.is_hybrid:
                model.set_requires_all_reduce(last)
            if self.zero_stage < 3:
                # Between microbatches parameters stay whole: nothing has changed that gathering again would bring.
                model.set_reshard_after_backward(last)
            model.set_is_last_backward(last)
        yield

    def zero(self) -> None:
        """Drop all gradients."""
        for model in self.models:
            for parameter in model.parameters():
                parameter.grad = None

    def close(self) -> None:
        """Nothing is held that outlives the model."""
