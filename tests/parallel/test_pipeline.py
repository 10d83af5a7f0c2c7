"""Stages on several ranks compute what one process computes, in every schedule; each idles as it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from shardwright.cost import balanced_stages, held_stages
from shardwright.cost.slots import SLOTS, Action, idle_slots, peak_live
from shardwright.model import build, build_stage, materialise
from shardwright.parallel.pipeline import Pipeline, check_microbatches
from shardwright.parallel.world import World
from shardwright.spec import BadInput, Experts, Layout, ModelSpec
from tests.ranks import RankPool

# Small, but grouped-query, with a vocabulary that costs as much as a block.
DENSE = ModelSpec(vocabulary=96, hidden=32, layers=5, heads=4, kv_heads=2, feed_forward=48, context=64)
TIED = replace(DENSE, tied_embeddings=True)
EXPERTS = replace(DENSE, experts=Experts(count=4, active=2, feed_forward=24, shared=1, balance_loss=0.1))
DENSE_FIRST = replace(EXPERTS, experts=replace(EXPERTS.experts, dense_layers=2))
SEQUENCE, STEPS, RATE = 16, 3, 0.3

Result = tuple[list[tuple[float, float]], dict[str, torch.Tensor], tuple[float, float]]


def batch(step: int, sequences: int, documents: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Tokens that can be learnt a little, some targets left out, two documents a sequence."""
    random = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 96, (sequences, SEQUENCE + 1), generator=random)
    targets = tokens[:, 1:].clone()
    targets[0, :3] = -100
    numbers = (torch.arange(SEQUENCE) >= 7).int().expand(sequences, -1).contiguous()
    return tokens[:, :-1], targets, numbers if documents else None


def descend(parameters: Any) -> None:
    """One step of plain gradient descent: what differs in a gradient differs in every later loss."""
    with torch.no_grad():
        for parameter in parameters:
            parameter -= RATE * parameter.grad
            parameter.grad = None


def alone(spec: ModelSpec, sequences: int, documents: bool) -> Result:
    """One process, one batch: losses of every step, last gradients by name, and a held-out loss."""
    model = build(spec)
    materialise(model, seed=5, device="cpu")
    losses = []
    gradients: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        inputs, targets, numbers = batch(step, sequences, documents)
        next_token, balance = model(inputs, targets, numbers)
        ((next_token + balance) / (targets != -100).sum()).backward()
        losses.append((next_token.item(), balance.item()))
        gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}  # type: ignore[union-attr]
        descend(model.parameters())
    inputs, targets, numbers = batch(99, 5, documents)
    with torch.no_grad():
        next_token, balance = model(inputs, targets, numbers)
    return losses, gradients, (next_token.item(), balance.item())


def piped(
    spec: ModelSpec, text: str, microbatches: int, documents: bool
) -> tuple[Result, list[Action], list[torch.Tensor]]:
    """The same on this rank of a pipeline; gradients are those of its stages."""
    layout = Layout.parse(text)
    with World.joined("cpu", 60.0) as world:
        group = dist.group.WORLD
        assert group is not None
        cuts = balanced_stages(spec, layout.pp * layout.interleave, SEQUENCE)
        stages = {number: build_stage(spec, cuts[number]) for number in held_stages(layout, world.rank)}
        for stage in stages.values():
            materialise(stage, seed=5, device="cpu")
        pipeline = Pipeline(
            stages, layout, microbatches=microbatches, sequence=SEQUENCE, group=group, device=world.device
        )
        losses = []
        gradients: dict[str, torch.Tensor] = {}
        parameters = [parameter for stage in stages.values() for parameter in stage.parameters()]
        for step in range(STEPS):
            inputs, targets, numbers = batch(step, microbatches * layout.microbatch, documents)
            sums = pipeline.forward_backward(inputs, targets, numbers, (targets != -100).sum())
            losses.append((sums[0].item(), sums[1].item()))
            for stage in stages.values():
                gradients |= {name: parameter.grad.clone() for name, parameter in stage.named_parameters()}  # type: ignore[union-attr]
            descend(parameters)
        next_token, balance = pipeline.evaluate(*batch(99, 5, documents))
        tables = [stage.embedding.weight.detach() for stage in stages.values() if hasattr(stage, "embedding")]
        return (losses, gradients, (next_token.item(), balance.item())), list(pipeline.actions), tables


def compare(ranks: RankPool, spec: ModelSpec, text: str, microbatches: int, documents: bool = True) -> None:
    layout = Layout.parse(text)
    expected, expected_gradients, held_out = alone(spec, microbatches * layout.microbatch, documents)
    results = ranks.run(layout.pp, piped, spec, text, microbatches, documents)
    last = [rank for rank in range(layout.pp) if layout.pp * layout.interleave - 1 in held_stages(layout, rank)]
    seen = set()
    for rank, ((losses, gradients, evaluated), _, _) in enumerate(results):
        want = expected if rank in last else [(0.0, 0.0)] * STEPS
        for actual, correct in zip([*losses, evaluated], [*want, held_out if rank in last else (0.0, 0.0)]):
            assert actual == pytest.approx(correct, rel=1e-5, abs=1e-12)
        for name, gradient in gradients.items():
            difference = (gradient - expected_gradients[name]).norm() / expected_gradients[name].norm()
            assert difference < 1e-5, f"rank {rank}, {name}: {difference}"
        seen |= set(gradients)
    assert seen == set(expected_gradients)
    tables = [table for _, _, held in results for table in held]
    assert len(tables) == 1 + spec.tied_embeddings
    assert all(torch.equal(table, tables[0]) for table in tables)


LAYOUTS = [
    ("pp=2,schedule=gpipe,microbatch=2", 3),
    ("pp=2,schedule=1f1b,microbatch=2", 4),
    ("pp=2,schedule=interleaved,interleave=2", 4),
    ("pp=2,schedule=zero-bubble", 4),
    ("pp=2,schedule=zero-bubble,interleave=2", 4),
    ("pp=2,schedule=zbv,interleave=2", 4),
    ("pp=2,schedule=dualpipev,interleave=2", 5),
]
WIDE = [
    ("pp=4,schedule=gpipe", 4),
    ("pp=4,schedule=1f1b", 6),
    ("pp=4,schedule=interleaved,interleave=2", 8),
    ("pp=4,schedule=zero-bubble,interleave=2", 4),
    ("pp=4,schedule=zbv,interleave=2", 8),
    ("pp=4,schedule=dualpipev,interleave=2", 8),
]
FEW = [
    ("pp=4,schedule=1f1b", 2),
    ("pp=4,schedule=interleaved,interleave=2", 2),
    ("pp=4,schedule=zero-bubble,interleave=2", 3),
    ("pp=4,schedule=zbv,interleave=2", 3),
]


@pytest.mark.parametrize("spec", [DENSE, TIED, EXPERTS, DENSE_FIRST], ids=["dense", "tied", "experts", "dense first"])
@pytest.mark.parametrize(("text", "microbatches"), LAYOUTS)
def test_two_ranks_equal_one(spec: ModelSpec, text: str, microbatches: int, ranks: RankPool) -> None:
    """Five layers over two or four stages."""
    compare(ranks, spec, text, microbatches)


@pytest.mark.parametrize("spec", [TIED, EXPERTS], ids=["tied", "experts"])
@pytest.mark.parametrize(("text", "microbatches"), WIDE + FEW)
def test_four_ranks_equal_one(spec: ModelSpec, text: str, microbatches: int, ranks: RankPool) -> None:
    """Nine layers over eight stages, six over four; enough microbatches and too few."""
    compare(ranks, replace(spec, layers=9 if "interleave=2" in text else 6), text, microbatches)


def test_without_documents(ranks: RankPool) -> None:
    compare(ranks, DENSE, "pp=2,schedule=1f1b", 2, documents=False)


def executed(ranks: RankPool, text: str, microbatches: int) -> list[list[Action]]:
    """What each rank of a real step did, in its order."""
    layout = Layout.parse(text)
    spec = replace(DENSE, layers=layout.pp * layout.interleave)
    return [actions for _, actions, _ in ranks.run(layout.pp, piped, spec, text, microbatches, True)]


def bubble(orders: list[list[Action]]) -> list[float]:
    """Idle slots of each rank over its busy ones."""
    busy = [sum(SLOTS[action.kind] for action in order) for order in orders]
    return [idle / work for idle, work in zip(idle_slots(orders), busy)]


@pytest.mark.parametrize(
    ("text", "microbatches", "stages_each"),
    [
        ("pp=2,schedule=1f1b", 6, 1),
        ("pp=4,schedule=1f1b", 8, 1),
        ("pp=4,schedule=1f1b", 2, 1),
        ("pp=4,schedule=gpipe", 8, 1),
        ("pp=2,schedule=interleaved,interleave=2", 6, 2),
        ("pp=4,schedule=interleaved,interleave=2", 8, 2),
        ("pp=2,schedule=interleaved,interleave=3", 4, 3),
    ],
)
def test_idle_slots_are_those_of_the_papers(text: str, microbatches: int, stages_each: int, ranks: RankPool) -> None:
    """(p − 1) of m for GPipe and 1F1B; divided by v when interleaved (arXiv:2104.04473, section 2.2)."""
    layout = Layout.parse(text)
    expected = (layout.pp - 1) / (microbatches * stages_each)
    assert bubble(executed(ranks, text, microbatches)) == pytest.approx([expected] * layout.pp)


@pytest.mark.parametrize(
    "schedule", ["zero-bubble", "zero-bubble,interleave=2", "zbv,interleave=2", "dualpipev,interleave=2"]
)
def test_zero_bubble_schedules_idle_less(schedule: str, ranks: RankPool) -> None:
    text = f"pp=4,schedule={schedule}"
    peer = 3 / (8 * Layout.parse(text).interleave)
    found = bubble(executed(ranks, text, 8))
    assert max(found) < peer


def test_live_microbatches(ranks: RankPool) -> None:
    """1F1B holds p − r microbatches on rank r however many there are; GPipe holds all."""
    assert [peak_live(order) for order in executed(ranks, "pp=4,schedule=1f1b", 8)] == [4, 3, 2, 1]
    assert [peak_live(order) for order in executed(ranks, "pp=4,schedule=gpipe", 8)] == [8] * 4


@pytest.mark.parametrize(
    ("text", "microbatches", "message"),
    [
        ("pp=4,schedule=interleaved,interleave=2", 9, "9 microbatches do not divide into 2 rounds.* Use .* 12 micro"),
        ("pp=2,schedule=zero-bubble", 5, "5 microbatches do not divide into 2 rounds.* Use .* 6 micro"),
        ("pp=2,schedule=dualpipev,interleave=2", 3, "2 × pp = 4 stages, and a step has 3. Use a batch of 4"),
    ],
)
def test_microbatches_that_a_schedule_cannot_order(text: str, microbatches: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_microbatches(Layout.parse(text), microbatches)


@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble", "zbv", "dualpipev"])
def test_the_rules_are_those_of_torch(schedule: str, ranks: RankPool) -> None:
    """Whatever we let through, torch orders: every number of microbatches up to 12, on two and on four ranks."""
    for size in (2, 4):
        (orders, *_) = ranks.run(size, constructed, f"pp={size},schedule={schedule},interleave=2")
        assert all(ours == theirs for ours, theirs in orders.values()), orders


def constructed(text: str) -> dict[int, tuple[bool, bool]]:
    """For each number of microbatches: whether we accept it, and whether torch does."""
    layout = Layout.parse(text)
    spec = replace(DENSE, layers=layout.pp * 2)
    found = {}
    with World.joined("cpu", 60.0) as world:
        for microbatches in range(1, 13):
            accepted = []
            for rule in (check_microbatches, lambda *_: None):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("shardwright.parallel.pipeline.check_microbatches", rule)
                    stages = {n: build_stage(spec, range(n, n + 1)) for n in held_stages(layout, world.rank)}
                    try:
                        Pipeline(
                            stages, layout, microbatches=microbatches, sequence=SEQUENCE, group=dist.group.WORLD,
                            device=world.device,
                        )  # fmt: skip
                        accepted.append(True)
                    except ValueError:
                        accepted.append(False)
            found[microbatches] = (accepted[0], accepted[1])
    return found
