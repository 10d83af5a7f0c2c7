"""Every layout gives the losses and gradient norms of one process, over ten steps, in fp32."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.parallel.layouts import MULTI_HEAD, PLAIN, RICH, TABLE, TIED, VARIANTS, Entry
from tests.ranks import RankPool
from tests.train.runs import largest_difference, losses, records, train

# The bound. Sums in another order are off by some 1e-7 each (see tests/train/test_parity.py); ten steps of Adam
# at this rate leave less than 1e-6 of that in what is seen.
TOLERANCE = 1e-5
SIZES = ("data.sequence=32", "steps=10", "observe.evaluate_sequences=3")


@pytest.fixture(scope="module")
def references(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Path]:
    """One process, for each variant of the model."""
    runs = {variant: tmp_path_factory.mktemp("reference") for variant in VARIANTS.values()}
    for variant, folder in runs.items():
        train(ranks, folder, 1, *SIZES, *variant, "layout.microbatch=8")
    return runs


def compare(entry: Entry, ranks: RankPool, references: dict[tuple[str, ...], Path], folder: Path) -> None:
    layout = [f"layout.{part}" for part in entry.layout.split(",")]
    outcome = train(ranks, folder, entry.ranks, *SIZES, *entry.variant, *layout)
    reference = references[entry.variant]
    assert len(losses(folder)) == 10
    assert largest_difference(losses(folder), losses(reference)) <= TOLERANCE
    norms = [[record["grad_norm"] for record in records(runs)] for runs in (folder, reference)]
    assert largest_difference(*norms) <= TOLERANCE
    (*_, expected) = (event for event in records(reference, file="events.jsonl") if event["kind"] == "evaluate")
    assert outcome["held_out_loss"] == pytest.approx(expected["detail"]["loss"], rel=TOLERANCE)


@pytest.mark.parametrize(
    "entry", [pytest.param(entry, marks=[pytest.mark.slow] * entry.is_slow) for entry in TABLE], ids=map(str, TABLE)
)
def test_equals_one_process(
    entry: Entry, ranks: RankPool, references: dict[tuple[str, ...], Path], tmp_path: Path
) -> None:
    compare(entry, ranks, references, tmp_path)


def test_the_table_is_wide() -> None:
    assert len({str(entry) for entry in TABLE}) == len(TABLE) >= 60


def test_layouts_drawn_at_random(ranks: RankPool, references: dict[tuple[str, ...], Path], tmp_path: Path) -> None:
    """What nobody thought of putting into the table; the draw is fixed, so that a failure can be repeated."""
    draw = random.Random(20261115)
    for number in range(4):
        size = draw.choice((2, 4))
        tensor = draw.choice([degree for degree in (1, 2, 4) if size % degree == 0])
        data = size // tensor
        zero = draw.choice((0, 1, 2, 3))
        parts = [
            f"tp={tensor}",
            f"zero={zero}",
            f"microbatch={draw.choice([m for m in (2, 4) if 8 // data % m == 0])}",
        ]
        if zero and data > 1 and draw.random() < 0.5:
            parts.append(f"shard={data // 2}")
        variant = draw.choice((PLAIN, TIED, RICH, MULTI_HEAD))
        compare(Entry(size, ",".join(parts), variant), ranks, references, tmp_path / str(number))


def test_another_layout_goes_on_with_the_same_run(ranks: RankPool, tmp_path: Path) -> None:
    """A run that changes its layout twice on the way has the losses of one that did not."""
    constant = (
        "data.sequence=32",
        "schedule.name=constant",
        "observe.evaluate_sequences=0",
        "model.tied_embeddings=true",
    )
    train(ranks, tmp_path / "whole", 1, *constant, "steps=9", "layout.microbatch=8")
    for steps, size, layout in (
        (3, 4, ("layout.tp=2", "layout.zero=3", "layout.microbatch=2")),
        (6, 2, ("layout.zero=1", "layout.microbatch=4")),
        (9, 4, ("layout.tp=2", "layout.pp=2", "layout.microbatch=4")),
    ):
        train(ranks, tmp_path / "changing", size, *constant, *layout, f"steps={steps}")
    assert largest_difference(losses(tmp_path / "changing"), losses(tmp_path / "whole")) <= TOLERANCE
