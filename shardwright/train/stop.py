"""Hears the signals that ask a run to end: SIGTERM (preemption), SIGINT (Ctrl-C) and SIGUSR2.

A handler only notes the request. Ranks tell each other at the next step's end, in a sum that they take anyway, so all
of them save and stop after the same step; a save inside a handler would hang when a signal reaches only some ranks.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """Whether this process was asked to stop; a context manager that listens while it is open."""

    def __init__(self, hear_interrupt: bool = True) -> None:
        self.requested = False
        # A supervised rank leaves Ctrl-C to its supervisor, which a terminal tells too.
        self._signals = [signal.SIGTERM, signal.SIGUSR2, *([signal.SIGINT] if hear_interrupt else [])]
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._before = {number: signal.signal(number, self._heard) for number in self._signals}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, _: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice by hand: now
        self.requested = True
