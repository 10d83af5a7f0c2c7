"""Which layers make a pipeline stage, and which stages a rank holds.

A pipeline is as fast as its slowest stage, so stages are cut by the work in them, not by counting layers: the head of
a model with a large vocabulary costs as much as several blocks.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise

from shardwright.cost.flops import forward_attention_flops, touched_parameters
from shardwright.spec import Layout, ModelSpec
from shardwright.spec.parameters import block_parameters

V_SHAPED = ("zbv", "dualpipev")
"""Schedules in which the stages run down the ranks and back up; in all others they run round and round."""


@lru_cache(maxsize=1024)
def balanced_stages(model: ModelSpec, stages: int, sequence: int) -> tuple[range, ...]:
    """The layers of each stage, cut so that the costliest stage costs as little as can be; each has at least one.

    Of the cuts that do, the one whose stages are most alike (least sum of squared costs), and of those the one with
    the longest early stages: the same on every rank, always.
    """
    if not 1 <= stages <= model.layers:
        raise ValueError(f"{model.layers} layers cannot be cut into {stages} stages")
    until = [0.0, *accumulate(layer_flops(model, sequence))]
    limit = _least_limit(until, stages)
    # best[n]: the best cut of the first n layers into the stages so far, as (squared costs, its ends negated).
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(1, stages + 1):
        cuts: dict[int, tuple[float, tuple[int, ...]]] = {}
        for stop in range(stage, model.layers - (stages - stage) + 1):
            options = [
                (squares + (until[stop] - until[start]) ** 2, (*ends, -stop))
                for start, (squares, ends) in best.items()
                if start < stop and until[stop] - until[start] <= limit
            ]
            if options:
                cuts[stop] = min(options)
        best = cuts
    _, ends = best[model.layers]
    return tuple(range(start, stop) for start, stop in pairwise((0, *(-end for end in ends))))


def _least_limit(until: list[float], stages: int) -> float:
    """The cost of the costliest stage in the cut where that is least."""
    layers = len(until) - 1
    least = {stop: until[stop] for stop in range(1, layers + 1)}
    for stage in range(2, stages + 1):
        least = {
            stop: min(max(least[start], until[stop] - until[start]) for start in range(stage - 1, stop))
            for stop in range(stage, layers + 1)
        }
    return least[layers]


def layer_flops(model: ModelSpec, sequence: int) -> list[float]:
    """Forward FLOPs of each layer for a token; the embedding counts with the first layer, the head with the last.

    Backward is twice that everywhere, so forward alone balances both.
    """
    attention = forward_attention_flops(model, sequence)
    flops = [2 * touched_parameters(model, block_parameters(model, layer)) + attention for layer in range(model.layers)]
    # A lookup multiplies nothing: a read forward, and an addition for each element backward.
    flops[0] += model.hidden
    flops[-1] += 2 * model.vocabulary * model.hidden
    return flops


def held_stages(layout: Layout, pipeline_rank: int) -> tuple[int, ...]:
    """The stages that a rank of the pipeline holds, in the order in which a microbatch meets them."""
    if layout.schedule in V_SHAPED:
        return pipeline_rank, 2 * layout.pp - 1 - pipeline_rank
    return tuple(pipeline_rank + turn * layout.pp for turn in range(layout.interleave))
