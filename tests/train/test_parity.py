"""The same run gives the same losses however it is split over ranks and microbatches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks import RankPool
from tests.train.runs import largest_difference, losses, records, train

# Sums in another order differ by rounding: fp32 keeps 24 bits, so one sum of n terms is off by about √n · 2⁻²⁴, some
# 1e-7 for these sizes, and a dozen small steps add a few of those.
TOLERANCE = 1e-6
SPLITS = [(1, 8), (1, 1), (2, 4), (2, 1), (4, 2), (4, 1), (8, 1)]


@pytest.fixture(scope="module")
def reference(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank, microbatches of 2: accumulation 4."""
    runs = tmp_path_factory.mktemp("reference")
    train(ranks, runs, 1)
    return runs


@pytest.mark.parametrize(("size", "microbatch"), SPLITS)
def test_any_ranks_and_accumulation(
    size: int, microbatch: int, ranks: RankPool, reference: Path, tmp_path: Path
) -> None:
    outcome = train(ranks, tmp_path, size, f"layout.microbatch={microbatch}")
    assert len(losses(tmp_path)) == 12
    assert largest_difference(losses(tmp_path), losses(reference)) <= TOLERANCE
    norms = [[record["grad_norm"] for record in records(runs)] for runs in (tmp_path, reference)]
    assert largest_difference(*norms) <= 10 * TOLERANCE  # a norm is a square root of a sum of squares of such sums
    assert outcome["held_out_loss"] == pytest.approx(records_loss(reference), rel=TOLERANCE)


def records_loss(runs: Path) -> float:
    """The last held-out loss that a run noted."""
    return [event["detail"]["loss"] for event in records(runs, file="events.jsonl") if event["kind"] == "evaluate"][-1]


def test_learning_happens(reference: Path) -> None:
    assert losses(reference)[-1] < losses(reference)[0] - 0.5


def test_another_seed_is_another_run(ranks: RankPool, reference: Path, tmp_path: Path) -> None:
    """The comparison can fail: a run that differs in more than rounding is far outside the tolerance."""
    train(ranks, tmp_path, 1, "seed=8")
    assert largest_difference(losses(tmp_path), losses(reference)) > 1e-3


def test_experts(ranks: RankPool, tmp_path: Path) -> None:
    """Routing, balance loss and the experts' gradients do not depend on the split either."""
    moe = ("model={preset='tiny-moe', layers=2}", "steps=8")
    for size, microbatch in ((1, 8), (2, 2)):
        train(ranks, tmp_path / str(size), size, *moe, f"layout.microbatch={microbatch}")
    assert largest_difference(losses(tmp_path / "2"), losses(tmp_path / "1")) <= TOLERANCE
    balance = [[record["balance_loss"] for record in records(tmp_path / size)] for size in ("2", "1")]
    assert balance[0][0] > 0
    assert largest_difference(*balance) <= TOLERANCE


@pytest.mark.parametrize("state", ["16", "18"])
def test_bf16_follows_fp32(state: str, ranks: RankPool, tmp_path: Path) -> None:
    """bf16 products, fp32 masters: near the fp32 run, and the split into ranks changes it only by bf16 rounding."""
    small = ("model.layers=1", "data.sequence=16", "observe.evaluate_sequences=0", "steps=4", "schedule.warmup=3")
    train(ranks, tmp_path / "fp32", 1, *small)
    for size, microbatch in ((1, 8), (2, 4)):
        bf16 = ("layout.precision=bf16", f"layout.state='{state}'", f"layout.microbatch={microbatch}")
        train(ranks, tmp_path / str(size), size, *small, *bf16)
    # A bf16 activation is off by 2⁻⁹ of itself; the loss, a mean over 128 tokens of numbers near 6, by less than that.
    for bf16_run, other in (("1", "fp32"), ("2", "1")):
        difference = largest_difference(losses(tmp_path / bf16_run), losses(tmp_path / other))
        assert 0 < difference <= 2**-9  # bf16 really was used
