"""What a person sees while a run trains: a live bar on a terminal, a plain line now and then elsewhere.

Batch systems keep everything that is printed: there, no carriage returns and no escape codes, and a line every few
seconds at most. `update` only remembers; on a terminal a thread draws, four times a second.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from shardwright.observe.format import duration, percent

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESHES_PER_SECOND = 4


class Progress(Protocol):
    """Shows how far a run is."""

    def update(self, metrics: Mapping[str, Any]) -> None:
        """A step is done; `metrics` as `Recorder.metrics` returns them."""

    def note(self, text: str) -> None:
        """Say something in words, above the bar or on a line of its own."""

    def close(self) -> None:
        """Show where it stands, and end."""


def progress_for(
    stream: TextIO,
    *,
    total_steps: int,
    start_step: int,
    log_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """A live bar where the stream is a terminal, else a line at most every `log_seconds`."""
    estimate = _Estimate(total_steps, start_step, clock)
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return _Terminal(stream, estimate)
    return _Lines(stream, estimate, log_seconds)


class _Estimate:
    """How long the rest will take, from the mean of the steps since the first."""

    def __init__(self, total_steps: int, start_step: int, clock: Callable[[], float]) -> None:
        self.total_steps = total_steps
        self.step = start_step
        self.clock = clock
        self._first: tuple[int, float] | None = None
        self._last = 0.0
        self._step_seconds: float | None = None

    def update(self, metrics: Mapping[str, Any]) -> None:
        self.step = int(metrics["step"])
        self._last = self.clock()
        self._step_seconds = metrics.get("step_seconds")
        # The first step warms up caches and compilers, so counting begins after it; and again after a rollback.
        if self._first is None or self.step <= self._first[0]:
            self._first = self.step, self._last

    def seconds_left(self) -> float | None:
        """None before anything is known."""
        if self._first is None:
            return None
        steps, seconds = self.step - self._first[0], self._last - self._first[1]
        mean = seconds / steps if steps else self._step_seconds
        return None if mean is None else mean * (self.total_steps - self.step)


def describe(metrics: Mapping[str, Any], *, total_steps: int, seconds_left: float | None) -> list[str]:
    """The parts of a progress line: `step 120/200`, `loss 2.314`, …"""
    parts = [f"step {metrics['step']}/{total_steps}", f"loss {_number(metrics.get('loss'), '.3f')}"]
    if "grad_norm" in metrics:
        parts.append(f"grad {_number(metrics['grad_norm'], '.2f')}")
    if "learning_rate" in metrics:
        parts.append(f"lr {_number(metrics['learning_rate'], '.1e')}")
    if "tokens_per_second" in metrics:
        parts.append(f"{_number(metrics['tokens_per_second'], ',.0f')} tokens/s global")
    parts.append(f"MFU {percent(metrics.get('mfu'))}")
    if metrics.get("memory_gib") is not None:
        parts.append(f"{metrics['memory_gib']:.2f} GiB")
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    return parts


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "n/a"
    return format(value, form) if math.isfinite(value) else str(value)


class _Lines:
    """Plain lines for logs and pipes."""

    def __init__(self, stream: TextIO, estimate: _Estimate, log_seconds: float) -> None:
        self._stream = stream
        self._estimate = estimate
        self._log_seconds = log_seconds
        self._next = -math.inf
        self._unsaid: Mapping[str, Any] | None = None

    def update(self, metrics: Mapping[str, Any]) -> None:
        self._estimate.update(metrics)
        self._unsaid = metrics
        if self._estimate.clock() >= self._next or self._estimate.step >= self._estimate.total_steps:
            self._say_last()

    def note(self, text: str) -> None:
        self._print(text)

    def close(self) -> None:
        if self._unsaid is not None:
            self._say_last()

    def _say_last(self) -> None:
        assert self._unsaid is not None
        estimate = self._estimate
        self._print(
            "  ".join(describe(self._unsaid, total_steps=estimate.total_steps, seconds_left=estimate.seconds_left()))
        )
        self._unsaid = None
        self._next = estimate.clock() + self._log_seconds

    def _print(self, text: str) -> None:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        # A reader that went away (`| head`), or a full disk behind the stream, must not end the run.
        with contextlib.suppress(OSError, ValueError):
            try:
                print(text, file=self._stream, flush=True)
            except UnicodeEncodeError:
                print(text.encode("ascii", "replace").decode(), file=self._stream, flush=True)


class _Terminal:
    """A live bar."""

    def __init__(self, stream: TextIO, estimate: _Estimate) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar

        self._estimate = estimate
        self._metrics: Mapping[str, Any] | None = None
        self._bar = ProgressBar(total=estimate.total_steps, width=24)
        self._console = Console(file=stream, highlight=False)  # rich itself honours NO_COLOR
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=REFRESHES_PER_SECOND,
            # What else is printed to this stream goes above the bar. The other stream is left alone: with --json,
            # standard output belongs to a program.
            redirect_stdout=stream is sys.stdout,
            redirect_stderr=stream is sys.stderr,
        )
        self._live.start()

    def update(self, metrics: Mapping[str, Any]) -> None:
        self._estimate.update(metrics)
        self._metrics = metrics

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed must not end the run
            self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()

    def _render(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        estimate = self._estimate
        self._bar.update(estimate.step)
        if self._metrics is None:
            words = f"step {estimate.step}/{estimate.total_steps}"
        else:
            parts = describe(self._metrics, total_steps=estimate.total_steps, seconds_left=estimate.seconds_left())
            words = "  ".join(part for part in parts if not part.startswith(("grad ", "lr ")))
        line = Table.grid(padding=(0, 1))
        line.add_row(self._bar, Text(words))
        return line
