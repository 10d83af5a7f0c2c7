"""Resume is a seek: a run in two parts equals the run in one, bit for bit, in the same layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks import RankPool
from tests.train.runs import largest_difference, losses, records, train

# A constant rate, so that the two parts are told apart by nothing but where they stop.
SETTINGS = ("schedule.name=constant", "schedule.warmup=0", "layout.microbatch=1")


@pytest.fixture(scope="module")
def whole(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("whole")
    train(ranks, runs, 4, *SETTINGS, "steps=12")
    return runs


def test_four_ranks_bit_for_bit(ranks: RankPool, whole: Path, tmp_path: Path) -> None:
    """With more than two ranks the order of additions matters: the gradient buckets must be the same after a resume."""
    train(ranks, tmp_path, 4, *SETTINGS, "steps=5")
    outcome = train(ranks, tmp_path, 4, *SETTINGS, "steps=12")
    assert outcome["step"] == 12
    assert losses(tmp_path) == losses(whole)
    norms = [[record["grad_norm"] for record in records(runs)] for runs in (tmp_path, whole)]
    assert norms[0] == norms[1]


def test_another_number_of_ranks_sees_the_same_batches(ranks: RankPool, whole: Path, tmp_path: Path) -> None:
    train(ranks, tmp_path, 4, *SETTINGS, "steps=5")
    train(ranks, tmp_path, 2, *SETTINGS, "steps=12")
    assert largest_difference(losses(tmp_path), losses(whole)) <= 1e-6


def test_a_finished_run_has_nothing_to_do(ranks: RankPool, whole: Path) -> None:
    before = losses(whole)
    outcome = train(ranks, whole, 4, *SETTINGS, "steps=12")
    assert outcome["step"] == 12
    assert outcome["loss"] is None
    assert losses(whole) == before


def test_bf16_masters_come_back(ranks: RankPool, tmp_path: Path) -> None:
    bf16 = (*SETTINGS, "layout.precision=bf16", "model.layers=1", "data.sequence=16", "observe.evaluate_sequences=0")
    train(ranks, tmp_path / "whole", 1, *bf16, "steps=5")
    train(ranks, tmp_path / "parts", 1, *bf16, "steps=2")
    train(ranks, tmp_path / "parts", 1, *bf16, "steps=5")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
