"""The shuffle is a bijection, looks random, and costs the same at any size; mixtures are exact in every block."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.data.mixture import BLOCK, Mixture, quotas
from shardwright.data.shuffle import counted_keys, derive_key, permute
from shardwright.spec.errors import BadInput


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 5000), key=st.integers(0, 2**64 - 1))
def test_a_bijection_of_every_size(size: int, key: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@settings(max_examples=200, deadline=None)
@given(size=st.integers(2, 10**18), key=st.integers(0, 2**64 - 1), data=st.data())
def test_large_sizes_stay_inside_and_do_not_collide(size: int, key: int, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, size - 1), unique=True, min_size=1, max_size=50))
    there = permute(np.array(chosen), size, key)
    assert there.min() >= 0
    assert there.max() < size
    assert len(set(there.tolist())) == len(chosen)
    assert permute(chosen[0], size, key) == there[0]  # one index or an array: the same answer


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_order_of_a_tiny_corpus_is_as_likely(size: int) -> None:
    keys = counted_keys(derive_key(1, "orders"), np.arange(6000))
    index = np.tile(np.arange(size), (len(keys), 1))
    orders = permute(index.reshape(-1), size, np.repeat(keys, size)).reshape(index.shape)
    counts = Counter(map(tuple, orders.tolist()))
    assert set(counts) == set(itertools.permutations(range(size)))
    expected = len(keys) / len(counts)
    assert all(abs(count - expected) < 6 * expected**0.5 for count in counts.values())


def test_places_are_uniform_and_keys_independent() -> None:
    size, bins = 100_003, 64
    order = permute(np.arange(size), size, 7)
    early = np.bincount(order[: size // 4] * bins // size, minlength=bins)
    expected = size / 4 / bins
    assert np.abs(early - expected).max() < 6 * expected**0.5
    # Neighbours do not stay neighbours, and another key gives an unrelated order.
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(order, permute(np.arange(size), size, 8))[0, 1]) < 0.02
    assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.02


def test_a_shuffle_of_a_trillion_needs_no_memory() -> None:
    index = np.arange(10**12 - 100, 10**12)
    permute(index, 10**12, 3)
    tracemalloc.start()
    permute(index, 10**12, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_an_index_outside_is_refused() -> None:
    for index in (-1, 10):
        with pytest.raises(IndexError):
            permute(index, 10, 0)


def test_keys_are_the_same_on_every_machine_and_differ_by_name() -> None:
    assert derive_key(42, "mixture") == 7944377496138034087
    # A change here reorders the data of every run that is under way.
    assert permute(np.arange(4), 10**12, 42).tolist() == [3130690270, 640239651820, 46135823187, 291115400532]
    names = [(), ("a",), ("b",), ("a", "b"), ("ab",), (1,), ("1",)]
    assert len({derive_key(0, *name) for name in names}) == len(names)


@settings(max_examples=100, deadline=None)
@given(weights=st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20))
def test_quotas_fill_a_block_and_follow_the_weights(weights: list[float]) -> None:
    places = quotas(weights)
    assert places.sum() == BLOCK
    assert places.min() >= 1
    ideal = np.array(weights) / sum(weights) * BLOCK
    # Off by less than one place, but for the places that tiny weights were lent.
    assert np.all(np.abs(places - ideal) < 1 + np.count_nonzero(ideal < 1))


@pytest.mark.parametrize("block", [0, 1, 10**9])
def test_a_mixture_is_exact_in_every_block(block: int) -> None:
    mixture = Mixture([0.7, 0.2, 0.1], seed=5)
    source, index = mixture.locate(np.arange(block * BLOCK, (block + 1) * BLOCK))
    for place, quota in enumerate(mixture.quotas.tolist()):
        ours = np.sort(index[source == place])
        # Each source is asked for its own samples in turn, none twice, none left out.
        assert np.array_equal(ours, np.arange(block * quota, (block + 1) * quota))
    # Well mixed inside the block, too.
    assert np.abs(np.bincount(source[: BLOCK // 16]) / (BLOCK // 16) - [0.7, 0.2, 0.1]).max() < 0.03


def test_blocks_are_dealt_differently() -> None:
    mixture = Mixture([1, 1], seed=5)
    source, _ = mixture.locate(np.arange(2 * BLOCK))
    agree = (source[:BLOCK] == source[BLOCK:]).mean()
    assert 0.48 < agree < 0.52


def test_more_sources_than_places_is_refused() -> None:
    with pytest.raises(BadInput, match="more sources"):
        quotas([1.0] * 5, block=4)
