"""Shows how far the preparation of data is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from shardwright.data import Progress

SECONDS_BETWEEN_LINES = 5.0


class Preparation:
    """Hears a preparation's progress and shows it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._source: str | None = None
        self._last_line = float("-inf")

    def __call__(self, progress: Progress) -> None:
        """One report; the last one has read everything."""
        if self._stream.isatty():
            self._draw(progress)
            return
        now, is_done = time.monotonic(), progress.done >= progress.total
        if is_done or now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            share = progress.done / progress.total if progress.total else 1.0
            print(
                f"preparing {progress.source}: {share:.0%}, {progress.tokens:,} tokens", file=self._stream, flush=True
            )

    def _draw(self, progress: Progress) -> None:
        if self._bar is None or self._source != progress.source:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("preparing {task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Bar(*columns, TextColumn("bytes"), TimeRemainingColumn(), console=Console(file=self._stream))
            self._source = progress.source
            self._task = self._bar.add_task(progress.source, total=progress.total)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, completed=progress.done)
        if progress.done >= progress.total:
            self._bar.stop()
            self._bar = None
