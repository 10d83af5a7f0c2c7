"""Writing that never holds up training: a bounded queue, one thread, and records dropped rather than waited for.

A disk that hangs or fills up must cost a run some lines of its log, not its steps. What was lost is counted, and the
count is written down once there is room again.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from shardwright.observe.files import AppendFile, remove_records, repair_lines
from shardwright.spec import BadInput

T = TypeVar("T")

QUEUE_CAPACITY = 1024
"""Records that may wait: minutes of steps, and little memory even with a figure from each of thousands of ranks."""


class Background(Generic[T]):
    """Hands items to a function in a thread of its own, in order, without ever making the caller wait."""

    def __init__(self, handle: Callable[[list[T], int], None], *, name: str, capacity: int = QUEUE_CAPACITY) -> None:
        """`handle` gets all items that wait, and how many were dropped after them for want of room."""
        self._handle = handle
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._dropped = 0
        self._busy = False
        self._closing = False
        self._changed = threading.Condition()
        # A daemon: a disk that hangs must not keep a finished process alive. `close` is what waits.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: T) -> bool:
        """Queue an item; False when it had to be dropped."""
        with self._changed:
            if self._closing or len(self._items) >= self._capacity:
                self._dropped += 1
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def flush(self, timeout: float) -> bool:
        """Wait until everything queued has been handled; False when that took longer than `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._items and not self._busy, timeout)

    def close(self, timeout: float) -> bool:
        """Take nothing more, handle what waits, end the thread; False when that took longer than `timeout`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._closing)
                items, dropped = list(self._items), self._dropped
                self._items.clear()
                self._dropped = 0
                self._busy = True
            try:
                if items or dropped:
                    self._handle(items, dropped)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
                    finished = self._closing and not self._items
            if finished:
                return


def to_standard_error(message: str) -> None:
    """Where a report goes when nobody chose another place."""
    print(f"shardwright: {message}", file=sys.stderr)


def dropped_record(count: int) -> dict[str, Any]:
    """What stands in a file in place of records that were lost."""
    return {"dropped": count}


class JsonLines:
    """An append-only file of one JSON object a line, written by one thread.

    JSON has no NaN and no infinity: such numbers are written as null, so that every reader of JSON can read the file.
    A loss of null therefore means that the loss was not finite.
    """

    def __init__(
        self,
        path: Path,
        *,
        capacity: int = QUEUE_CAPACITY,
        dropped: Callable[[int], dict[str, Any] | None] = dropped_record,
        report: Callable[[str], None] = to_standard_error,
    ) -> None:
        """Open for appending, a torn last line cut off.

        `dropped` is told how many records were lost, once there is room again, and gives the record to write in
        their place, if any. `report` gets one sentence, once, when the file cannot be written.
        """
        self.path = path
        self.error: OSError | None = None
        """The first error of the disk, if there was one."""
        self._dropped = dropped
        self._report = report
        self._lost = 0
        self._written: bool | None = None
        self._file_lock = threading.Lock()
        try:
            repair_lines(path)
            self._file = AppendFile(path)
        except OSError as error:
            raise BadInput(str(path), rule=f"cannot be written: {error.strerror}") from None
        self._background: Background[bytes] = Background(self._write, name=f"write {path.name}", capacity=capacity)

    def append(self, record: Mapping[str, Any]) -> bool:
        """Queue a record; False when it had to be dropped. Never waits for the disk."""
        return self._background.put(encode(record))

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until the disk has every record so far; False when it did not manage in time, or failed.

        Call it before a checkpoint is published: what a resumed run will not compute again must not be lost.
        """
        if not self._background.flush(timeout):
            return False
        try:
            with self._file_lock:
                self._file.sync()
        except OSError as error:
            self._failed(error)
            return False
        return self._lost == 0

    def truncate_after(self, step: int, timeout: float = 10.0) -> int:
        """Remove the records of later steps, in one atomic step; returns how many.

        For a run that resumes at `step` and will compute those steps again: with them gone, its metrics are those
        of a run that was never interrupted.
        """
        if not self._background.flush(timeout):
            raise BadInput(str(self.path), rule=f"could not be written within {timeout:g} seconds")
        with self._file_lock:
            try:
                removed = remove_records(self.path, lambda record: (record.get("step") or 0) > step)
                if removed:
                    replaced, self._file = self._file, AppendFile(self.path)
                    replaced.close()
            except OSError as error:
                raise BadInput(str(self.path), rule=f"cannot be rewritten: {error.strerror}") from None
        return removed

    def close(self, timeout: float = 10.0) -> bool:
        """Write what waits and close the file; False when the disk did not manage in time, or failed."""
        if not self._background.close(timeout):
            return False
        if self._written is None:
            self._written = self.flush()
            self._file.close()
        return self._written

    def _write(self, lines: list[bytes], dropped: int) -> None:
        self._lost += dropped
        try:
            with self._file_lock:
                if lines:
                    try:
                        self._file.append(b"".join(lines))
                    except OSError:
                        self._lost += len(lines)
                        raise
                if self._lost:
                    record = self._dropped(self._lost)
                    if record is not None:
                        self._file.append(encode(record))
                    self._lost = 0
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        if self.error is None:
            self.error = error
            self._report(f"{self.path} cannot be written ({error.strerror}); training goes on, records may be missing")


def encode(record: Mapping[str, Any]) -> bytes:
    """One line of JSON; numbers that are not finite become null."""
    try:
        text = json.dumps(record, allow_nan=False, ensure_ascii=False)
    except ValueError:
        text = json.dumps(_finite(record), allow_nan=False, ensure_ascii=False)
    return text.encode("utf-8", errors="replace") + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
