"""Batches: the same for every number of ranks, every sample once an epoch, at any step, with documents numbered."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright.data import Batch, GlobalBatches, Prefetch, PreparedData, prepare
from shardwright.spec.errors import BadInput
from shardwright.spec.run import DataSpec

Make = Callable[..., PreparedData]


def batches_of(data: PreparedData, **changes: object) -> GlobalBatches:
    values = {"seed": 1, "sequence": 32, "sequences": 12, "document_mask": True, **changes}
    return GlobalBatches(data, **values)  # type: ignore[arg-type]


def same(one: Batch, other: Batch) -> bool:
    documents = (one.documents is None) == (other.documents is None)
    if one.documents is not None and other.documents is not None:
        documents = torch.equal(one.documents, other.documents)
    return torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets) and documents


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ranks=st.sampled_from([1, 2, 3, 4, 6, 12]), step=st.integers(0, 10**12), mixed=st.booleans())
def test_every_number_of_ranks_sees_the_same_global_batch(corpus: Make, ranks: int, step: int, mixed: bool) -> None:
    data = corpus()
    if mixed:
        data = PreparedData((*data.corpora, *corpus(30, seed=1).corpora), (3.0, 1.0))
    whole = batches_of(data).read(step)
    parts = [batches_of(data).read(step, rank, ranks) for rank in range(ranks)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
    assert whole.inputs.dtype == whole.targets.dtype == torch.int64
    assert torch.equal(whole.inputs[:, 1:], whole.targets[:, :-1])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.integers(0, 300), min_size=1, max_size=20))
def test_the_order_of_asking_changes_nothing(corpus: Make, steps: list[int]) -> None:
    data = corpus()
    one = batches_of(data)
    for step in [*range(10), *steps]:
        assert same(one.read(step), batches_of(data).read(step))


def test_an_epoch_is_every_sample_once_in_a_new_order(corpus: Make) -> None:
    data = corpus()
    batches = batches_of(data, sequences=5)
    one = data.corpora[0]
    every = Counter(
        tuple(one.open(shard)[start : start + 32].tolist())
        for shard in one.train
        for start in range(0, shard.tokens - 32, 32)
    )
    assert sum(every.values()) == batches.samples
    rows = [tuple(row) for step in range(-(-3 * batches.samples // 5)) for row in batches.read(step).inputs.tolist()]
    epochs = [rows[number * batches.samples : (number + 1) * batches.samples] for number in range(3)]
    assert all(Counter(epoch) == every for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    other = batches_of(data, sequences=5, seed=2)
    assert other.read(0).inputs.tolist() != batches.read(0).inputs.tolist()


def test_a_corpus_of_one_sample_fills_a_batch(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(40, dtype=np.uint16))
    data = prepare(DataSpec(source=str(tmp_path / "a.npy"), held_out=0.0, sequence=32, folder=str(tmp_path)))
    assert (batches_of(data).read(7).inputs == torch.arange(32)).all()


def test_samples_do_not_cross_shards(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full(70, number, dtype=np.uint16))
    data = prepare(DataSpec(source=str(tmp_path), held_out=0.0, sequence=32, folder=str(tmp_path / "kept")))
    batches = batches_of(data, sequences=6)
    assert batches.samples == 6
    whole = batches.read(0)
    assert sorted(whole.inputs[:, 0].tolist()) == [0, 0, 1, 1, 2, 2]
    assert (whole.inputs == whole.inputs[:, :1]).all()


def test_mixtures_keep_their_shares(corpus: Make) -> None:
    first, second = corpus(60), corpus(30, seed=1)
    data = PreparedData((*first.corpora, *second.corpora), (3.0, 1.0))
    batches = batches_of(data, sequences=2**14)
    counts = Counter()
    for step in range(4):  # a whole block
        counts.update(place for place, _, _ in batches._samples_of(step, 0, 2**14))
    assert counts == {0: 3 * 2**14, 1: 2**14}
    seen = {tuple(row) for row in batches_of(data, sequences=512).read(0).inputs.tolist()}
    ours = {tuple(row) for row in batches_of(second, sequences=512).read(0).inputs.tolist()}
    assert seen & ours
    assert seen - ours


def test_held_out_is_read_in_one_order_and_wraps(corpus: Make) -> None:
    data = corpus()
    batches = batches_of(data, sequences=4, split="held_out")
    assert batches.samples == data.samples("held_out", 32)
    corpus_ = data.corpora[0]
    first = corpus_.open(corpus_.held_out[0])[:33]
    assert batches.read(0).inputs[0].tolist() == first[:-1].tolist()
    rows = [row for step in range(batches.samples) for row in batches.read(step).inputs.tolist()]
    assert rows[: batches.samples] == rows[batches.samples : 2 * batches.samples]
    assert same(batches.read(3), batches_of(data, sequences=4, split="held_out", seed=9).read(3))
    mixed = PreparedData((*data.corpora, *corpus(30, seed=1).corpora), (3.0, 1.0))
    both = batches_of(mixed, sequences=1, split="held_out")
    rows = [tuple(both.read(step).inputs[0].tolist()) for step in range(both.samples)]
    assert len(set(rows)) == mixed.samples("held_out", 32)


def test_no_held_out_split_is_said(corpus: Make) -> None:
    with pytest.raises(BadInput, match="the held_out split of the data is shorter than one sequence"):
        batches_of(corpus(held_out=0.0), split="held_out")
    with pytest.raises(BadInput, match="does not divide among 5 data ranks"):
        batches_of(corpus()).read(0, 0, 5)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        batches_of(corpus()).read(0, 2, 2)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(st.lists(st.sampled_from([256, 1, 2, 3]), min_size=9, max_size=9), min_size=1, max_size=5),
)
def test_documents_are_counted_from_separators(rows: list[list[int]]) -> None:
    batches = GlobalBatches.__new__(GlobalBatches)
    batches._separator = 256
    inputs = np.array(rows, dtype=np.int64)[:, :-1]
    documents = batches._documents(inputs)
    expected = np.cumsum(inputs == 256, axis=1)
    if (inputs[:, 1:] == 256).any():
        assert documents is not None
        assert documents.dtype == torch.int32
        assert documents.tolist() == expected.tolist()
    else:
        assert documents is None
    batches._separator = None
    assert batches._documents(inputs) is None


def test_microbatches_drop_documents_where_there_is_no_boundary() -> None:
    inputs = torch.arange(24).reshape(4, 6)
    documents = torch.tensor([[0] * 6, [1] * 6, [0, 0, 1, 1, 1, 1], [0] * 6], dtype=torch.int32)
    parts = Batch(inputs, inputs + 1, documents).split(2)
    assert [part.inputs.tolist() for part in parts] == [inputs[:2].tolist(), inputs[2:].tolist()]
    assert parts[0].documents is None
    assert parts[1].documents is not None
    assert parts[1].documents.tolist() == documents[2:].tolist()
    assert all(part.documents is None for part in Batch(inputs, inputs, None).split(1))
    with pytest.raises(ValueError, match="do not divide"):
        Batch(inputs, inputs, None).split(3)
    moved = Batch(inputs, inputs + 1, documents).to("cpu")
    assert torch.equal(moved.targets, inputs + 1)


def test_opening_far_on_is_as_quick_as_at_the_start(corpus: Make) -> None:
    data = corpus()

    def seconds(step: int) -> float:
        times = []
        for _ in range(7):
            begun = time.perf_counter()
            batches_of(data).read(step)
            times.append(time.perf_counter() - begun)
        return min(times)

    assert seconds(10**9) < 0.01
    assert seconds(10**9) < 5 * seconds(0)


def test_reading_ahead_gives_the_same_batches(corpus: Make) -> None:
    data = corpus()
    with Prefetch(batches_of(data), start=5, stop=9, rank=1, ranks=2) as ahead:
        seen = list(ahead)
    assert [step for step, _ in seen] == [5, 6, 7, 8]
    assert all(same(batch, batches_of(data).read(step, 1, 2)) for step, batch in seen)
    assert next(ahead, None) is None


class Slow(GlobalBatches):
    """Batches that fail, or wait for a gate, at a step."""

    gate: threading.Event | None = None
    fails_at = -1
    reads = 0

    def read(self, step: int, rank: int = 0, ranks: int = 1) -> Batch:
        self.reads += 1
        if step == self.fails_at:
            raise OSError("the disk is gone")
        if self.gate:
            self.gate.wait(20)
        return super().read(step, rank, ranks)


def slow(data: PreparedData) -> Slow:
    return Slow(data, seed=1, sequence=32, sequences=12, document_mask=True)


def test_an_error_is_raised_where_its_batch_would_have_come(corpus: Make) -> None:
    batches = slow(corpus())
    batches.fails_at = 3
    with Prefetch(batches, start=1, depth=8) as ahead:
        assert [next(ahead)[0], next(ahead)[0]] == [1, 2]
        with pytest.raises(OSError, match="the disk is gone"):
            next(ahead)
        assert next(ahead, None) is None


def test_no_more_than_depth_is_read_ahead_and_closing_is_prompt(corpus: Make) -> None:
    batches = slow(corpus())
    ahead = Prefetch(batches, depth=3)
    next(ahead)
    time.sleep(0.1)
    assert batches.reads <= 1 + 3 + 1  # taken, ready, and one in the thread's hand
    begun = time.monotonic()
    ahead.close()
    assert time.monotonic() - begun < 1
    assert not ahead._thread.is_alive()
    assert next(ahead, None) is None
    ahead.close()


def test_a_read_that_hangs_meets_a_deadline_and_closing_frees_a_waiting_reader(corpus: Make) -> None:
    batches = slow(corpus())
    batches.gate = threading.Event()
    ahead = Prefetch(batches, deadline=0.1)
    with pytest.raises(TimeoutError, match=r"the batch of step 0 did not come within 0\.1 seconds"):
        next(ahead)
    ahead._deadline = 20
    ended: list[object] = []
    waiting = threading.Thread(target=lambda: ended.append(next(ahead, None)))
    waiting.start()
    threading.Timer(0.1, batches.gate.set).start()
    ahead.close()
    waiting.join(5)
    assert not waiting.is_alive()
