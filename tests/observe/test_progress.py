"""What a person sees: plain lines on a pipe, a live bar on a terminal, and no time lost by either."""

import io
import os
import pty
import re
import subprocess
import sys
import threading
import time

import pytest

from shardwright.observe import duration, gib, percent, progress_for

STEP = {
    "loss": 2.3141,
    "grad_norm": 0.81,
    "learning_rate": 9.1e-4,
    "step_seconds": 0.9,
    "tokens_per_second": 24310.4,
    "mfu": None,
    "memory_gib": 0.61,
}


class Clock:
    """A clock that goes when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_obey_the_interval_and_always_show_first_and_last():
    stream, clock = io.StringIO(), Clock()
    progress = progress_for(stream, total_steps=200, start_step=0, log_seconds=5, clock=clock)
    for step in range(1, 201):
        progress.update({"step": step, **STEP})
        clock.now += 0.9
    progress.close()
    text = stream.getvalue()
    assert "\r" not in text
    assert "\x1b" not in text
    steps = [int(line.split("/")[0].removeprefix("step ")) for line in text.splitlines()]
    assert steps[0] == 1
    assert steps[-1] == 200
    assert set(range(1, 200, 6)) | {200} == set(steps)  # six steps of 0.9 s are the first to pass five seconds
    expected = "loss 2.314  grad 0.81  lr 9.1e-04  24,310 tokens/s global  MFU n/a  0.61 GiB  "
    assert f"step 121/200  {expected}1m 11s left" in text.splitlines()
    assert text.splitlines()[-1] == f"step 200/200  {expected}0.0s left"


def test_a_run_that_stops_early_shows_where():
    stream, clock = io.StringIO(), Clock()
    progress = progress_for(stream, total_steps=200, start_step=40, log_seconds=60, clock=clock)
    for step in (41, 42, 43):
        progress.update({"step": step, **STEP, "mfu": 0.4131, "loss": float("nan")})
    progress.note("saved step 43\r\nwith care ×")
    progress.close()
    progress.close()
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 41/200", "saved step 43", "with care ×", "step 43/200"]
    assert "loss nan" in lines[0]
    assert "MFU 41.3%" in lines[0]
    assert "\r" not in stream.getvalue()


def test_a_reader_that_went_away_does_not_end_the_run():
    code = f"""
import os, sys
from shardwright.observe import progress_for
progress = progress_for(sys.stdout, total_steps=2, start_step=0, log_seconds=1)
progress.update({{"step": 1, **{STEP!r}}})
progress.note("still here")
progress.close()
os.write(2, b"went on")
os._exit(0)
"""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, check=True)
    os.close(write)
    assert done.stderr == b"went on"


def test_a_stream_that_knows_only_ascii():
    raw = io.BytesIO()
    progress = progress_for(io.TextIOWrapper(raw, "ascii"), total_steps=2, start_step=0, log_seconds=1)
    progress.note("2 × 3")
    progress.close()
    assert raw.getvalue() == b"2 ? 3\n"


class Terminal:
    """A pseudo-terminal, and all that was written to it."""

    def __init__(self) -> None:
        self._read, write = pty.openpty()
        self.stream = os.fdopen(write, "w")
        self._seen = bytearray()
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self) -> None:
        try:
            while chunk := os.read(self._read, 65536):
                self._seen.extend(chunk)
        except OSError:
            pass  # Linux says so when the other end was closed

    def text(self) -> str:
        self.stream.close()
        self._thread.join(5)
        os.close(self._read)
        return self._seen.decode()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def show_some(terminal: Terminal) -> tuple[str, float]:
    progress = progress_for(terminal.stream, total_steps=200, start_step=0, log_seconds=5)
    costs = []
    for step in range(1, 2001):
        begin = time.perf_counter()
        progress.update({"step": 1 + step // 20, **STEP})
        costs.append(time.perf_counter() - begin)
    progress.note("[bold]saved[/bold] step 43")
    progress.close()
    return terminal.text(), sorted(costs)[len(costs) // 2]


def test_a_bar_on_a_terminal(terminal):
    text, cost = show_some(terminal)
    assert cost < 100e-6  # the middle of many: a thread may be drawing on one of two busy cores
    assert "step 101/200" in text
    assert "24,310 tokens/s global" in text
    assert "MFU n/a" in text
    assert "0.61 GiB" in text
    assert " left" in text
    assert "[bold]saved[/bold] step 43" in text
    assert re.search(r"\x1b\[[\d;]*38;5;\d+", text)  # coloured
    assert text.rstrip().endswith("\x1b[?25h")  # and the cursor is back


def test_no_color_is_honoured(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text, _ = show_some(terminal)
    assert "step 101/200" in text
    assert not re.search(r"\x1b\[[\d;]*(3[0-8]|4[0-8]|9[0-7])(;[\d;]*)?m", text)


def test_a_dumb_terminal_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    text, _ = show_some(terminal)
    assert "\x1b" not in text
    assert "step 1/200" in text


def test_numbers_for_people():
    assert [duration(s) for s in (0.04, 9.96, 59.6, 72, 3599.7, 11100, 187200)] == [
        "0.0s",
        "10s",
        "1m 00s",
        "1m 12s",
        "1h 00m",
        "3h 05m",
        "2d 04h",
    ]
    assert duration(-5) == "-5.0s"
    assert gib(653_524_992) == "0.61 GiB"
    assert (percent(0.4131), percent(None)) == ("41.3%", "n/a")
