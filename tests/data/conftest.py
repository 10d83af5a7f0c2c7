"""Small corpora for the tests of the larder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwright.data import PreparedData, prepare
from shardwright.spec.run import DataSpec

from .helpers import write_texts


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., PreparedData]:
    """Prepare a corpus of some documents; asked for again, it is the same one."""

    @functools.cache
    def make(count: int = 60, *, held_out: float = 0.1, sequence: int = 32, seed: int = 0) -> PreparedData:
        source = write_texts(tmp_path / f"text-{seed}-{count}", count, seed=seed)
        return prepare(
            DataSpec(source=str(source), held_out=held_out, sequence=sequence, folder=str(tmp_path / "kept"))
        )

    return make
