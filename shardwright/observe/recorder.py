"""One place to tell what happened: each step's metrics, and every event, handed to the files and to exporters.

Only one process of a run records: the one that holds its directory, or rank 0. A `Sink` must not make the caller wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from shardwright.observe.directory import RunDirectory
from shardwright.observe.writer import JsonLines, to_standard_error


class Sink(Protocol):
    """Something that records are written to: the run directory's own files, TensorBoard."""

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Take the metrics of one step; must not wait."""

    def event(self, record: Mapping[str, Any]) -> None:
        """Take one event; must not wait."""

    def rewind(self, step: int) -> None:
        """The run goes on after this step: what was recorded of later ones will come again."""

    def flush(self, timeout: float) -> bool:
        """Wait until everything so far is on the disk; False when it did not get there."""

    def close(self, timeout: float) -> bool:
        """Flush, and end; False when not everything got to the disk."""


class JsonFiles:
    """The sink that every run has: `metrics.jsonl` and `events.jsonl` of its directory."""

    def __init__(self, directory: RunDirectory, report: Callable[[str], None] = to_standard_error) -> None:
        self._events = JsonLines(directory.events, dropped=lambda count: _lost(count, "events"), report=report)
        self._metrics = JsonLines(directory.metrics, dropped=self._lost_metrics, report=report)

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Queue it for metrics.jsonl."""
        self._metrics.append(record)

    def event(self, record: Mapping[str, Any]) -> None:
        """Queue it for events.jsonl."""
        self._events.append(record)

    def rewind(self, step: int) -> None:
        """Remove the metrics of later steps; events stay, for they did happen."""
        self._metrics.truncate_after(step)

    def flush(self, timeout: float) -> bool:
        """Wait until the disk has both files."""
        deadline = time.monotonic() + timeout
        metrics = self._metrics.flush(timeout)
        return self._events.flush(max(0.0, deadline - time.monotonic())) and metrics

    def close(self, timeout: float) -> bool:
        """Close both; the metrics first, because what they lost is told in an event."""
        deadline = time.monotonic() + timeout
        metrics = self._metrics.close(timeout)
        return self._events.close(max(0.0, deadline - time.monotonic())) and metrics

    def _lost_metrics(self, count: int) -> None:
        # metrics.jsonl holds one object a step and nothing else; that some are missing is an event.
        self._events.append(_lost(count, "steps' metrics"))


class Recorder:
    """Gives metrics and events their fields and hands them to every sink."""

    def __init__(
        self, directory: RunDirectory, sinks: Sequence[Sink] = (), report: Callable[[str], None] = to_standard_error
    ) -> None:
        """`sinks` stand beside the directory's own files; `report` gets one sentence when those cannot be written."""
        self._sinks: tuple[Sink, ...] = (JsonFiles(directory, report), *sinks)

    def metrics(
        self,
        *,
        step: int,
        tokens: int,
        loss: float | None,
        grad_norm: float | None,
        learning_rate: float,
        step_seconds: float,
        data_seconds: float,
        tokens_per_second: float,
        tokens_per_second_per_gpu: float,
        mfu: float | None,
        memory_gib: float | None,
        ranks: Mapping[str, Sequence[float]] | None = None,
        **more: float,
    ) -> dict[str, Any]:
        """Record one step, and return the record (for a progress line).

        `tokens` are those seen since step 0, this step's included. `tokens_per_second` is of the whole run, `mfu` a
        fraction (None on a device whose peak is unknown), `memory_gib` the peak of the fullest rank, `ranks` figures
        of each rank in order, such as `{"step_seconds": […]}`. `more` are figures that only some models have, such as
        `balance_loss`.
        """
        record: dict[str, Any] = {
            "step": step,
            "tokens": tokens,
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "step_seconds": step_seconds,
            "data_seconds": data_seconds,
            "tokens_per_second": tokens_per_second,
            "tokens_per_second_per_gpu": tokens_per_second_per_gpu,
            "mfu": mfu,
            "memory_gib": memory_gib,
            **more,
        }
        if ranks is not None:
            record["ranks"] = {name: list(values) for name, values in ranks.items()}
        for sink in self._sinks:
            sink.metrics(record)
        return record

    def event(
        self, kind: str, *, step: int | None, rank: int | None = None, detail: str | Mapping[str, Any] = ""
    ) -> dict[str, Any]:
        """Record that something happened, and return the record.

        `kind` is a word: start, resume, stop, finish, save, evaluate, restart, failure, rollback, skip, warning.
        `detail` is a sentence, or named values. `time` is in seconds since 1970.
        """
        record = event_record(kind, step=step, rank=rank, detail=detail)
        for sink in self._sinks:
            sink.event(record)
        return record

    def rewind(self, step: int) -> None:
        """The run goes on from the checkpoint of this step: metrics of later steps are removed, events stay."""
        for sink in self._sinks:
            sink.rewind(step)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until the disk has everything so far; call it before a checkpoint is published."""
        done = [sink.flush(timeout) for sink in self._sinks]  # every one of them, even after one that failed
        return all(done)

    def close(self, timeout: float = 10.0) -> bool:
        """Write what waits and end; False when not all of it got to the disk."""
        done = [sink.close(timeout) for sink in self._sinks]  # every one of them, even after one that failed
        return all(done)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def event_record(
    kind: str, *, step: int | None, rank: int | None = None, detail: str | Mapping[str, Any] = ""
) -> dict[str, Any]:
    """An event as it is written, with the time now."""
    return {"time": round(time.time(), 3), "kind": kind, "step": step, "rank": rank, "detail": detail}


def _lost(count: int, what: str) -> dict[str, Any]:
    detail = {"message": f"{count} {what} were not written: the disk was too slow or full", "dropped": count}
    return event_record("warning", step=None, detail=detail)
