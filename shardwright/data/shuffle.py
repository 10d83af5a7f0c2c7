"""A shuffle that is never stored: where an index goes is computed from the index, the size and a key.

The index is split into two digits, and each digit in turn is shifted by a keyed hash of the other. Every such round can
be undone, so together they are a bijection, whatever the hash is: a Feistel network, in the form for digits of any base
(Black and Rogaway, 2002, 'generalized Feistel'). The bases are chosen near the square root of the size, so that
the pairs of digits are hardly more than the indices; one that lands outside is sent through again until it lands
inside ('cycle walking', same paper), which keeps the bijection. The common choice, halves of an even number of bits,
has up to four pairs an index and walks up to fifteen times for the unluckiest of a batch.

So a shuffle of 10**12 samples needs no memory, and opens at any position at once.
"""

from __future__ import annotations

import hashlib
import math
from typing import overload

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6
"""Four make a Feistel network a strong pseudo-random permutation (Luby and Rackoff, 1988); the two more serve the
digits of base two or three that tiny corpora have."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_ONE = np.uint64(1)
_ROUND_NUMBERS = np.arange(1, ROUNDS + 1, dtype=np.uint64)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def derive_key(seed: int, *names: str | int) -> int:
    """A 64-bit key that belongs to these names under this seed, the same on every machine and in every version."""
    text = "\0".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def counted_keys(key: int, count: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A key for each count (an epoch, a block) under one key: `derive_key` for whole arrays."""
    return mix(np.uint64(key) + (count.astype(np.uint64) + _ONE) * _GOLDEN)


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele et al., 2014): every bit of the result depends on every bit given."""
    value = (value ^ (value >> _SHIFTS[0])) * _MULTIPLIERS[0]
    value = (value ^ (value >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return value ^ (value >> _SHIFTS[2])


@overload
def permute(index: int, size: int, key: int) -> int: ...


@overload
def permute(index: NDArray[np.int64], size: int, key: int | NDArray[np.uint64]) -> NDArray[np.int64]: ...


def permute(index: int | NDArray[np.int64], size: int, key: int | NDArray[np.uint64]) -> int | NDArray[np.int64]:
    """Where `index` goes in the shuffle of [0, size) that `key` names; an array of keys gives each index its own."""
    if isinstance(index, (int, np.integer)):
        return int(_permute(np.array([index], dtype=np.int64), size, key)[0])
    return _permute(index, size, key)


def _permute(index: NDArray[np.int64], size: int, key: int | NDArray[np.uint64]) -> NDArray[np.int64]:
    if index.size and (index.min() < 0 or index.max() >= size):
        raise IndexError(f"an index outside [0, {size})")
    high = math.isqrt(size - 1) + 1 if size > 1 else 1
    bases = (np.uint64(high), np.uint64(-(-size // high)))
    base = np.array([key], dtype=np.uint64) if isinstance(key, int) else key
    # Row r holds the key of round r: one column for all indices, or one for each.
    keys = mix(base + (_ROUND_NUMBERS * _GOLDEN)[:, np.newaxis])
    value = _feistel(index.astype(np.uint64), bases, keys)
    limit = np.uint64(size)
    outside = np.flatnonzero(value >= limit)
    while outside.size:
        value[outside] = _feistel(value[outside], bases, keys if keys.shape[1] == 1 else keys[:, outside])
        outside = outside[value[outside] >= limit]
    return value.astype(np.int64)


def _feistel(
    value: NDArray[np.uint64], bases: tuple[np.uint64, np.uint64], keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    high, low = np.divmod(value, bases[1])
    for first, second in zip(keys[::2], keys[1::2]):
        # The hash loses its top bit first, so that the sum cannot overflow.
        high = (high + (mix(low ^ first) >> _ONE)) % bases[0]
        low = (low + (mix(high ^ second) >> _ONE)) % bases[1]
    return high * bases[1] + low
