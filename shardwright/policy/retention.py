"""Which checkpoints are kept."""

from __future__ import annotations

from collections.abc import Iterable


def kept(steps: Iterable[int], *, newest: int) -> set[int]:
    """The steps whose checkpoints stay: the newest few."""
    return set(sorted(steps)[-newest:])
