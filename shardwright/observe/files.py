"""Files that are whole or not there: replaced in one step, appended to without torn ends, read past torn ones."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_BLOCK = 64 * 1024


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content in one step: a reader, or a crash, sees the old text or the new, never a mix."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_durably(temporary, text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_durably(path: Path, text: str) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the disk has a folder's entries: a rename is not durable before that."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems cannot sync a folder; theirs is durable by other means or not at all.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AppendFile:
    """A file that grows by whole pieces: a piece that does not fit on the disk leaves the file as it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)

    def append(self, data: bytes) -> None:
        """Write it all, or raise `OSError` and keep nothing of it."""
        size = os.fstat(self._descriptor).st_size
        remaining = memoryview(data)
        try:
            while remaining:
                remaining = remaining[os.write(self._descriptor, remaining) :]
        except OSError:
            if self._regular:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, size)
            raise

    def sync(self) -> None:
        """Wait until the disk has what was written."""
        if self._regular:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Give the descriptor back; once more does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def repair_lines(path: Path) -> int:
    """Cut what a crash left torn at the end of a JSONL file; returns how many bytes were cut.

    A killed process leaves a line without its end; a machine that lost power can leave one filled with zeros.
    """
    if not path.is_file():
        return 0
    whole = size = path.stat().st_size
    for end, line in _lines_from_end(path):
        whole = end
        if line.endswith(b"\n") and _parsed(line) is not None:
            break
        whole = end - len(line)
    if whole < size:
        os.truncate(path, whole)
    return size - whole


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Each object of a JSONL file, in order; a line that is torn, because it is being written, is left out."""
    try:
        with path.open("rb") as file:
            for line in file:
                record = _parsed(line)
                if record is not None:
                    yield record
    except FileNotFoundError:
        return


def last_record(path: Path, key: str) -> dict[str, Any] | None:
    """The last object of a JSONL file that has a value for this key, found from the end: the file may be long."""
    try:
        for _, line in _lines_from_end(path):
            record = _parsed(line)
            if record is not None and record.get(key) is not None:
                return record
    except FileNotFoundError:
        pass  # nothing was written yet
    return None


def remove_records(path: Path, unwanted: Callable[[dict[str, Any]], bool]) -> int:
    """Replace a JSONL file, in one step, by itself without some of its records; returns how many those were."""
    removed = 0
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with path.open("rb") as old, temporary.open("wb") as new:
            for line in old:
                record = _parsed(line)
                if record is None or unwanted(record):
                    removed += 1
                else:
                    new.write(line)
            new.flush()
            os.fsync(new.fileno())
        if removed:
            temporary.replace(path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return removed


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _lines_from_end(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines from the last to the first, each with the offset of its end."""
    with path.open("rb") as file:
        start = file.seek(0, os.SEEK_END)
        buffer = b""  # what lies between `start` and the line given out last
        while True:
            newline = buffer.rfind(b"\n", 0, -1)  # not the one that ends the line itself
            if newline >= 0 or (start == 0 and buffer):
                yield start + len(buffer), buffer[newline + 1 :]
                buffer = buffer[: newline + 1]
            elif start == 0:
                return
            else:
                length = min(_BLOCK, start)
                start -= length
                file.seek(start)
                buffer = file.read(length) + buffer
