"""Gradients over data ranks: summed once a step, in fp32, in a fixed order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from shardwright.parallel import GradientSync, World, engine_runs
from shardwright.spec import BadInput, Layout, ModelSpec, RunSpec
from tests.ranks import RankFailure, RankPool


def summed(bucket_bytes: int, dtype: torch.dtype, microbatches: int) -> tuple[list[torch.Tensor], int]:
    """Gradients after a step in which rank r's loss is (r + 1) × a fixed function, and how many sums were taken."""
    calls = 0
    original = dist.all_reduce

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*arguments, **options)

    with World.joined("cpu", 30.0) as world:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 8, bias=False).to(dtype) for _ in range(3)]
        parameters = [layer.weight for layer in layers]
        sync = GradientSync(parameters, dist.group.WORLD, bucket_bytes)
        dist.all_reduce = counted
        try:
            x = torch.ones(1, 8, dtype=dtype)
            for number in range(1, microbatches + 1):
                with sync.last_backward(number == microbatches):
                    out = x
                    for layer in layers:
                        out = layer(out)
                    (out.sum() * (world.rank + 1)).backward()
        finally:
            dist.all_reduce = original
        gradients = [parameter.grad.clone() for parameter in parameters]
        sync.zero()
        assert not any(parameter.grad.any() for parameter in parameters)
        return gradients, calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sum_over_ranks_and_microbatches(dtype: torch.dtype, ranks: RankPool) -> None:
    (alone, _), *_ = ranks.run(1, summed_alone, dtype)
    for size, microbatches in ((2, 1), (3, 2)):
        results = ranks.run(size, summed, 2**20, dtype, microbatches)
        for gradients, calls in results:
            assert calls == 1  # once a step, however many microbatches
            factor = microbatches * size * (size + 1) / 2
            for actual, single in zip(gradients, alone):
                torch.testing.assert_close(actual.float(), factor * single.float(), rtol=2**-7, atol=0)


def summed_alone(dtype: torch.dtype) -> tuple[list[torch.Tensor], int]:
    """The same function's gradients on one rank, without any sum."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8, bias=False).to(dtype) for _ in range(3)]
    out = torch.ones(1, 8, dtype=dtype)
    for layer in layers:
        out = layer(out)
    out.sum().backward()
    return [layer.weight.grad for layer in layers], 0  # type: ignore[misc]


def test_buckets_divide_the_work(ranks: RankPool) -> None:
    """With room for one matrix a bucket there are three sums; with room for two, two."""
    for bucket_bytes, expected in ((8 * 8 * 4, 3), (2 * 8 * 8 * 4, 2)):
        results = ranks.run(2, summed, bucket_bytes, torch.float32, 1)
        assert [calls for _, calls in results] == [expected, expected]


def bf16_sum_of_many() -> float:
    """One gradient of 1 and one of 2⁻⁹ on each of the other ranks: a bf16 sum would lose the small ones."""
    with World.joined("cpu", 30.0) as world:
        parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
        sync = GradientSync([parameter], dist.group.WORLD)
        with sync.last_backward():
            (parameter * (1.0 if world.rank == 0 else 2.0**-9)).sum().backward()
        return float(parameter.grad)  # type: ignore[arg-type]


def test_bf16_gradients_are_summed_in_fp32(ranks: RankPool) -> None:
    # 1 + 4 · 2⁻⁹ = 1 + 2⁻⁷, which bf16 can hold; adding one 2⁻⁹ at a time in bf16 would leave 1.
    assert ranks.run(5, bf16_sum_of_many) == [1 + 2**-7] * 5


def forgotten_parameter() -> None:
    with World.joined("cpu", 30.0):
        used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))
        sync = GradientSync([used, unused], dist.group.WORLD)
        with sync.last_backward():
            used.sum().backward()


def test_a_parameter_without_gradient_is_named_not_waited_for(ranks: RankPool) -> None:
    with pytest.raises(RankFailure, match=r"1 parameters got no gradient.*\(3,\)"):
        ranks.run(2, forgotten_parameter, deadline=60.0)


@pytest.mark.parametrize(
    "layout", ["cp=2", "sp=false", "recompute=full", "precision=fp8-row", "state=12", "offload=optimizer"]
)
def test_what_the_engine_cannot_run_is_refused_by_name(layout: str) -> None:
    name = layout.split("=")[0]
    with pytest.raises(BadInput, match=f"layout.{name} = .*can be planned but not yet trained"):
        engine_runs(RunSpec(model=ModelSpec.named("tiny"), layout=Layout.parse(f"dp=2,{layout}")))


def test_experts_are_not_split_over_tensor_ranks_yet() -> None:
    with pytest.raises(BadInput, match=r"layout\.tp = 2: experts cannot be split"):
        engine_runs(RunSpec(model=ModelSpec.named("tiny-moe"), layout=Layout(dp=1, tp=2)))
