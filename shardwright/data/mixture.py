"""Which source the n-th sample of a mixture comes from, without counting the samples before it.

Samples are dealt in blocks of 65,536. In each block every source has a fixed whole number of places (its quota), and
the places are shuffled by a key of the block. So the shares are exact in every block, and any n is found at once:
the block gives how many samples each source has dealt before, the shuffled place gives the source and the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.data.shuffle import counted_keys, derive_key, permute
from shardwright.spec.errors import BadInput

BLOCK = 2**16
"""Samples a block: shares are exact to 1 in 65,536, and exact over any whole number of blocks."""


def quotas(weights: Sequence[float], block: int = BLOCK) -> NDArray[np.int64]:
    """Places of each source in a block, by largest remainder; a source with any weight has at least one."""
    if not weights or min(weights) <= 0:
        raise BadInput("data.mixture", list(weights), rule="every source needs a positive weight")
    if len(weights) > block:
        raise BadInput("data.mixture", len(weights), rule=f"holds more sources than the {block} places of a block")
    ideal = np.asarray(weights, dtype=np.float64) / sum(weights) * block
    result = np.maximum(np.floor(ideal).astype(np.int64), 1)
    # Ties go to the earlier source, so that the answer does not depend on how a sort is made.
    order = np.argsort(result - ideal, kind="stable")
    missing = block - int(result.sum())
    result[order[: max(missing, 0)]] += 1
    while result.sum() > block:  # the single places given to tiny weights are taken from the largest
        result[int(np.argmax(result))] -= 1
    return result


class Mixture:
    """The dealing of samples to sources: a pure function of (seed, n)."""

    def __init__(self, weights: Sequence[float], *, seed: int) -> None:
        self.quotas = quotas(weights)
        """Places of each source in every block."""
        self._starts = np.concatenate(([0], np.cumsum(self.quotas)))
        self._key = derive_key(seed, "mixture")

    def locate(self, sample: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each global sample number: its source, and which of that source's samples it is."""
        block, place = np.divmod(sample, BLOCK)
        place = permute(place, BLOCK, counted_keys(self._key, block))
        source = np.searchsorted(self._starts, place, side="right") - 1
        return source, block * self.quotas[source] + place - self._starts[source]
