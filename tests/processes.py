"""Starts the real command and waits on what it does, with deadlines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil

COMMAND = [sys.executable, "-m", "shardwright"]


def environment(**more: str) -> dict[str, str]:
    """This process's environment with nothing in it that a launcher would have set."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    kept = {name: value for name, value in os.environ.items() if name not in launcher}
    return {**kept, "NO_COLOR": "1", **more}


def shardwright(*arguments: str, deadline: float = 120.0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=deadline, check=False, env=environment(**more)
    )


@contextmanager
def started(*arguments: str, command: Sequence[str] = COMMAND, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command and go on; it and what it started are gone when the test is done with it."""
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**more)
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            for one in (*psutil.Process(process.pid).children(recursive=True), process):
                one.kill()
            process.wait()


def wait_until(
    condition: Callable[[], Any], deadline: float = 90.0, process: subprocess.Popen[str] | None = None
) -> Any:
    """What a condition returns once it is true; fails at the deadline, or when the process ends before it."""
    end = monotonic() + deadline
    while monotonic() < end:
        value = condition()
        if value:
            return value
        if process is not None and process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode} first:\n{process.communicate()[0]}")
        sleep(0.02)
    raise AssertionError(f"not true after {deadline} s")


def steps_done(directory: Path) -> int:
    """Steps in a run's metrics so far."""
    metrics = directory / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def rank_processes(process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    """The rank processes that a supervisor started, by rank."""
    found = {}
    for child in psutil.Process(process.pid).children():
        try:
            if "shardwright.guard.rank" in child.cmdline():
                found[int(child.environ()["RANK"])] = child
        except (psutil.NoSuchProcess, KeyError):
            continue
    return found


def lines_of(path: Path) -> list[dict[str, Any]]:
    """A JSON-lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
