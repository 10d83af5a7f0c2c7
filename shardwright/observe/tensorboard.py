"""TensorBoard event files, written with the `tensorboard` package's own records and protocol buffers, without torch.

Its EventFileWriter is not used: its queue makes the caller wait when full, and a full disk ends its thread with a
stack trace. `Background` and `AppendFile`, which carry every other file of a run, do neither.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shardwright.observe.files import AppendFile
from shardwright.observe.writer import Background, to_standard_error
from shardwright.spec import BadInput


class TensorBoard:
    """A sink that writes each number of a step as a scalar, and the numbers of events as `kind/name`."""

    def __init__(self, folder: Path, report: Callable[[str], None] = to_standard_error) -> None:
        """A new event file in `folder`, which TensorBoard reads together with those of earlier starts."""
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            raise BadInput(
                "observe.tensorboard",
                True,
                rule="the tensorboard package is not installed",
                fix="Install it: pip install 'shardwright[tensorboard]'",
            ) from None
        self._event_type, self._session_type = event_pb2.Event, event_pb2.SessionLog
        self._summary_type = summary_pb2.Summary
        self._record_writer = RecordWriter
        self._report = report
        self._lost = 0
        # TensorBoard reads the files of a folder in the order of their names: the time, to the nanosecond, comes first.
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        name = f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.{socket.gethostname()}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = AppendFile(folder / name)
        except OSError as error:
            raise BadInput("observe.tensorboard", True, rule=f"{folder} cannot be written: {error.strerror}") from None
        self._background: Background[Any] = Background(self._write, name="write TensorBoard")
        self._background.put(self._event_type(wall_time=time.time(), file_version="brain.Event:2"))

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Each number of a step as a scalar; figures of single ranks stay in metrics.jsonl."""
        self._scalars(record, int(record["step"]), "")

    def event(self, record: Mapping[str, Any]) -> None:
        """The numbers of an event that belongs to a step (`evaluate/loss`, `save/seconds`)."""
        if record["step"] is not None and isinstance(record["detail"], Mapping):
            self._scalars(record["detail"], int(record["step"]), f"{record['kind']}/")

    def rewind(self, step: int) -> None:
        """Tell TensorBoard to forget what it read of later steps."""
        start = self._session_type(status=self._session_type.START)
        self._background.put(self._event_type(wall_time=time.time(), step=step + 1, session_log=start))

    def flush(self, timeout: float) -> bool:
        """Wait until everything so far is written."""
        return self._background.flush(timeout) and self._lost == 0

    def close(self, timeout: float) -> bool:
        """Write what waits, end the thread, close the file."""
        if not self._background.close(timeout):
            return False
        self._file.close()
        return self._lost == 0

    def _scalars(self, values: Mapping[str, Any], step: int, prefix: str) -> None:
        numbers = {
            prefix + name: float(value)
            for name, value in values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step"
        }
        if numbers:
            summary = self._summary_type(
                value=[self._summary_type.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
            )
            self._background.put(self._event_type(wall_time=time.time(), step=step, summary=summary))

    def _write(self, events: list[Any], dropped: int) -> None:
        framed = io.BytesIO()
        writer = self._record_writer(framed)
        for event in events:
            writer.write(event.SerializeToString())
        try:
            self._file.append(framed.getvalue())
            self._lost += dropped
        except OSError as error:
            if self._lost == 0:
                self._report(f"{self._file.path} cannot be written ({error.strerror}); training goes on without it")
            self._lost += len(events) + dropped
