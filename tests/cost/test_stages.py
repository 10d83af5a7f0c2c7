"""Stages are cut by their work, and every layer is in one."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from shardwright.cost import balanced_stages, held_stages, model_flops_per_token
from shardwright.cost.slots import Action, idle_slots, peak_live
from shardwright.cost.stages import layer_flops
from shardwright.spec import Layout, ModelSpec

TINY = ModelSpec.named("tiny")


@pytest.mark.parametrize(
    "model",
    [
        replace(TINY, layers=7),
        replace(TINY, layers=9, vocabulary=4000),
        replace(ModelSpec.named("tiny-moe"), layers=8),
        replace(ModelSpec.named("deepseek-v3"), layers=8),
    ],
    ids=lambda model: f"{model.layers} layers",
)
def test_no_other_cut_has_a_cheaper_costliest_stage(model: ModelSpec) -> None:
    flops = layer_flops(model, 128)
    for stages in range(1, model.layers + 1):
        cut = balanced_stages(model, stages, 128)
        assert [layer for part in cut for layer in part] == list(range(model.layers))
        assert all(len(part) >= 1 for part in cut)
        costliest = max(sum(flops[part.start : part.stop]) for part in cut)
        every_other = (
            max(sum(flops[start:stop]) for start, stop in pairwise((0, *inner, model.layers)))
            for inner in combinations(range(1, model.layers), stages - 1)
        )
        assert costliest == pytest.approx(min(every_other))


def test_a_head_as_heavy_as_blocks_takes_their_place() -> None:
    plain, heavy = replace(TINY, vocabulary=8), replace(TINY, vocabulary=2000)
    assert [len(part) for part in balanced_stages(plain, 4, 64)] == [2, 2, 2, 2]
    # A block has 49 thousand weights and the head 128 thousand: two and a half blocks.
    assert [len(part) for part in balanced_stages(heavy, 2, 64)] == [5, 3]


def test_layers_sum_to_the_model() -> None:
    for name in ("tiny", "tiny-moe", "llama3.2-1b"):
        model = ModelSpec.named(name)
        lookup = model.hidden
        assert 3 * (sum(layer_flops(model, 256)) - lookup) == pytest.approx(model_flops_per_token(model, 256))


def test_more_stages_than_layers() -> None:
    with pytest.raises(ValueError, match="8 layers cannot be cut into 9 stages"):
        balanced_stages(TINY, 9, 64)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pp=3", [(0,), (1,), (2,)]),
        ("pp=2,schedule=interleaved,interleave=3", [(0, 2, 4), (1, 3, 5)]),
        ("pp=3,schedule=zbv,interleave=2", [(0, 5), (1, 4), (2, 3)]),
        ("pp=2,schedule=dualpipev,interleave=2", [(0, 3), (1, 2)]),
    ],
)
def test_which_stages_a_rank_holds(text: str, expected: list[tuple[int, ...]]) -> None:
    layout = Layout.parse(text)
    assert [held_stages(layout, rank) for rank in range(layout.pp)] == expected


def test_idle_slots_by_hand() -> None:
    """Two ranks, one microbatch: each waits while the other works, 1 + 2 slots."""
    first = [Action("forward", 0, 0), Action("backward", 0, 0)]
    second = [Action("forward", 1, 0), Action("backward", 1, 0)]
    assert idle_slots([first, second]) == [3, 3]
    split = [Action("forward", 1, 0), Action("input-gradient", 1, 0), Action("weight-gradient", 1, 0)]
    assert idle_slots([first, split]) == [2, 2]  # rank 0 goes on as soon as it has the gradient
    assert peak_live(split) == 1


def test_an_order_that_cannot_end() -> None:
    with pytest.raises(ValueError, match="rank 0 waits forever"):
        idle_slots([[Action("backward", 0, 0), Action("forward", 0, 0)], [Action("forward", 1, 0)]])
