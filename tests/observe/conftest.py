"""What several tests of this floor need: a small run, and a disk that is really full."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.observe import RunDirectory
from shardwright.spec import ModelSpec, RunSpec, write_run


@pytest.fixture
def run() -> RunSpec:
    return RunSpec(model=ModelSpec.named("tiny"), name="first").resolve()


@pytest.fixture
def directory(tmp_path: Path, run: RunSpec) -> Iterator[RunDirectory]:
    with RunDirectory.open(tmp_path, run, write_run(run)) as opened:
        yield opened


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "shardwright-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
