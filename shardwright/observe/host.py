"""What this machine and this process have: memory, cores, disk."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

import psutil

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def resident_memory() -> int:
    """Bytes of memory that this process holds now."""
    return int(psutil.Process().memory_info().rss)


def peak_memory() -> int:
    """The most bytes that this process has held, since it began or since `reset_peak_memory`.

    Pages of mapped files (libraries, token shards) do not count where the kernel tells them apart: it drops them when
    memory is wanted.
    """
    try:
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        sizes = {words[0]: int(words[1]) * 1024 for words in lines if words[0] in ("VmHWM:", "RssFile:")}
        return sizes["VmHWM:"] - sizes.get("RssFile:", 0)
    except (OSError, KeyError):
        pass  # not Linux: the figure below cannot be reset, but is there
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def reset_peak_memory() -> bool:
    """Let `peak_memory` count from now; False where the kernel does not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def usable_cores() -> int:
    """Processor cores that this process may use, which a scheduler often makes fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_memory() -> int:
    """Bytes of memory that this process could use: the machine's, or its container's limit where that is less."""
    total = int(psutil.virtual_memory().total)
    for path in _CGROUP_LIMITS:
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):
            continue  # no such limit, or the word "max"
    return total


def free_disk(path: str | Path) -> int:
    """Bytes that an ordinary user can still write where this path is, or will be once it is made."""
    folder = Path(path).absolute()
    while not folder.exists():
        folder = folder.parent
    return int(psutil.disk_usage(str(folder)).free)


def processor() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: Python's own word for it
    return platform.processor() or platform.machine()
