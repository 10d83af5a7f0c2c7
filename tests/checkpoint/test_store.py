"""Checkpoints appear whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from shardwright.checkpoint import CheckpointStore
from shardwright.policy import kept

WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
MOMENTS = {"first/a": torch.zeros(2, 3)}


def save(store: CheckpointStore, step: int) -> Path:
    return store.save(step, weights=WEIGHTS, optimizer=MOMENTS, facts={"tokens": step * 10})


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    assert store.latest() is None
    save(store, 5)
    save(store, 12)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 12
    assert latest.path.name == "step-00000012"
    assert latest.facts["tokens"] == 120
    for name, tensor in latest.weights().items():
        assert torch.equal(tensor, WEIGHTS[name])
        assert tensor.dtype == WEIGHTS[name].dtype
    assert torch.equal(latest.optimizer()["first/a"], MOMENTS["first/a"])


def test_published_state_is_never_overwritten(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    before = save(store, 3)
    stamp = (before / "checkpoint.json").stat().st_mtime_ns
    store.save(3, weights={"a": torch.zeros(1)}, optimizer={}, facts={})
    assert (before / "checkpoint.json").stat().st_mtime_ns == stamp
    assert set(store.latest().weights()) == {"a", "b"}  # type: ignore[union-attr]


def test_retention(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3, 4):
        save(store, step)
    store.keep(kept(store.steps(), newest=2))
    assert store.steps() == [3, 4]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


SAVER = """
import sys, torch
from pathlib import Path
from shardwright.checkpoint import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]))
tensors = {str(n): torch.full((1 << 18,), float(n)) for n in range(16)}
print("ready", flush=True)
for step in range(2, 10_000):
    store.save(step, weights=tensors, optimizer=tensors, facts={})
    store.keep({step})
"""


def test_a_killed_save_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    """SIGKILL at seven moments of saving in a loop: the newest published checkpoint always loads."""
    save(CheckpointStore(tmp_path), 1)
    for attempt in range(7):
        process = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.01 + 0.041 * attempt)  # the moment is what varies, nothing is waited for
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        latest = CheckpointStore(tmp_path).latest()
        assert latest is not None
        for tensors in (latest.weights(), latest.optimizer()):
            assert all(tensor.numel() for tensor in tensors.values())
        assert json.loads((latest.path / "checkpoint.json").read_text())["step"] == latest.step
    CheckpointStore(tmp_path).clear_unfinished()
    assert all(entry.name.startswith("step-") for entry in tmp_path.iterdir())


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        store = CheckpointStore(tmp_path / "checkpoints")
        save(store, 1)
        with pytest.raises(OSError, match=r"weights|space"):
            store.save(2, weights={"large": torch.zeros(1 << 20)}, optimizer={}, facts={})
        assert store.steps() == [1]
        assert [entry.name for entry in store.folder.iterdir()] == ["step-00000001"]
        assert torch.equal(store.latest().weights()["a"], WEIGHTS["a"])  # type: ignore[union-attr]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
