"""A folder that is there whole, or not at all.

It is filled under another name beside its place and renamed when everything in it is on the disk, so a reader never
sees half of one. A lock keeps several processes from doing the same work at once; it saves time and is not what
makes publication safe: where a filesystem has no locks, or a holder is stuck, two that race each fill a
folder of their own, the first rename wins and the other is thrown away.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwright.observe.files import sync_folder

STUCK_SECONDS = 60.0
"""How long the holder of a lock may write nothing before we stop waiting for it."""

_POLL_SECONDS = 0.05


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, having waited for whoever held it; what a killed holder left is swept away."""
    path = folder.with_name(f".{folder.name}.lock")
    descriptor = _acquire(path, lambda: _partial_bytes(folder))
    try:
        if descriptor is not None:
            # Names of other hosts are left alone: their locks may not be visible from here.
            for left in folder.parent.glob(f".{folder.name}.{socket.gethostname()}.*.partial"):
                shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which becomes `folder` when the block ends well and vanishes when it does not."""
    name = f".{folder.name}.{socket.gethostname()}.{uuid.uuid4().hex[:12]}.partial"
    partial = folder.with_name(name)
    partial.mkdir()
    try:
        yield partial
        sync_folder(partial)
        try:
            partial.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def discard(folder: Path) -> None:
    """Take a folder away at once, under its name, then piece by piece."""
    aside = folder.with_name(f".{folder.name}.{socket.gethostname()}.{uuid.uuid4().hex[:12]}.partial")
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _acquire(path: Path, progress: Callable[[], int]) -> int | None:
    """The open, locked file; None where there are no locks, or the holder has been still for too long."""
    seen, since = progress(), time.monotonic()
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before us removes the file when it is done: a lock on a removed file excludes nobody.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        except BlockingIOError:
            pass
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)
        now = progress()
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > STUCK_SECONDS:
            return None
        time.sleep(_POLL_SECONDS)


def _partial_bytes(folder: Path) -> int:
    """How much the holder of the lock has written so far."""
    total = 0
    for path in folder.parent.glob(f".{folder.name}.*.partial/*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
