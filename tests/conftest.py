"""Fixtures that many tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ranks import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Warm processes for tests that need several ranks."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache or run folder; prepared data is shared by a test session."""
    base: Path = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("SHARDWRIGHT_DATA", str(base / "data"))
    monkeypatch.delenv("SHARDWRIGHT_RUNS", raising=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped, and say so, where there is none."""
    if not any("gpu" in item.keywords for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
