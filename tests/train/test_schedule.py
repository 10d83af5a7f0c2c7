"""The learning rate: warm-up, shapes, ends."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from shardwright.spec import ModelSpec, OptimizerSpec, RunSpec, ScheduleSpec
from shardwright.train.schedule import learning_rate


def rates(steps: int = 100, **schedule: Any) -> list[float]:
    run = RunSpec(
        model=ModelSpec.named("tiny"),
        steps=steps,
        optimizer=OptimizerSpec(learning_rate=2.0),
        schedule=ScheduleSpec(**schedule),
    )
    return [learning_rate(step, run) for step in range(steps)]


@pytest.mark.parametrize("name", ["cosine", "linear", "wsd"])
def test_rises_to_the_peak_and_ends_at_the_final_fraction(name: str) -> None:
    values = rates(name=name, warmup=10, final=0.25)
    assert values[:10] == pytest.approx([2.0 * (step + 1) / 10 for step in range(10)])
    assert values[10] == pytest.approx(2.0)
    assert values[-1] == pytest.approx(0.5)
    assert all(later <= earlier for earlier, later in itertools.pairwise(values[10:]))


def test_cosine_and_linear_half_way() -> None:
    assert rates(101, name="cosine", final=0.0)[50] == pytest.approx(1.0)
    assert rates(101, name="cosine", final=0.0)[25] == pytest.approx(1 + math.cos(math.pi / 4))
    assert rates(101, name="linear", final=0.0)[25] == pytest.approx(1.5)


def test_wsd_is_flat_until_its_decay() -> None:
    values = rates(name="wsd", warmup=5, decay=20, final=0.0)
    assert values[5:80] == pytest.approx([2.0] * 75)
    assert values[81] < 2.0
    assert rates(name="wsd")[79] == pytest.approx(2.0)  # left out: a fifth of the run
    assert rates(name="wsd")[85] < 2.0


def test_constant() -> None:
    assert rates(name="constant", warmup=2)[2:] == [2.0] * 98


def test_a_run_of_one_step() -> None:
    assert rates(1, name="cosine") == [2.0]
