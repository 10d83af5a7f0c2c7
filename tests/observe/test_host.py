"""What this machine and process have."""

from pathlib import Path

import pytest

from shardwright.observe import free_disk, peak_memory, reset_peak_memory, resident_memory, total_memory, usable_cores


def test_memory_peaks_and_can_be_counted_again():
    size = 64 * 1024**2
    before = peak_memory()
    block = bytearray(b"x") * size
    assert resident_memory() >= size
    with_block = peak_memory()
    assert with_block >= max(before, size)
    del block
    if not reset_peak_memory():
        pytest.skip("this kernel does not let a process reset its peak")
    assert peak_memory() < with_block - size // 2


def test_what_the_machine_has(tmp_path: Path):
    assert usable_cores() >= 1
    assert total_memory() >= resident_memory() > 0
    assert free_disk(tmp_path / "not" / "there" / "yet") == pytest.approx(free_disk(tmp_path), rel=0.1)
