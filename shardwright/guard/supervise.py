"""Starts the ranks of this machine through TorchElastic's agent and sees them through."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from shardwright.observe import RunDirectory
from shardwright.spec import RunSpec
from shardwright.train.session import Outcome

LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo", "NCCL", "recvBytes")
"""Marks of an error that only says that another rank went away."""


class RankFailed(RuntimeError):
    """A rank ended the run; the message names it and carries its own error."""


def supervise(run: RunSpec, directory: RunDirectory, *, ranks: int, threads: int, human: str) -> Outcome:
    """Run all ranks on this machine to the end of the run; raises `RankFailed` when one fails for good."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # its stack traces say less than ours
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    with tempfile.TemporaryDirectory(prefix="shardwright-") as scratch, _signals_passed_on():
        outcome = Path(scratch) / "outcome.json"
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=run.guard.restarts,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=scratch),
            signals_to_handle="SIGQUIT",  # the others are ours: the agent would kill ranks that should save
        )
        arguments = ["-m", "shardwright.guard.rank", str(directory.path), str(outcome), human]
        try:
            elastic_launch(config, sys.executable)(*arguments)
        except ChildFailedError as error:
            raise RankFailed(describe(error.failures, directory)) from None
        return Outcome(**json.loads(outcome.read_text("utf-8")))


def describe(failures: Mapping[int, ProcessFailure], directory: RunDirectory) -> str:
    """One sentence on the failure that came first: a killed rank before the peers that only missed it."""
    # SIGTERM is how the agent ends the ranks that are left.
    killed = [failure for failure in failures.values() if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM]
    own = [failure for failure in failures.values() if not any(mark in message_of(failure) for mark in LOST_PEER)]
    failure = min(killed or own or list(failures.values()), key=lambda one: one.timestamp)
    log = directory.log_file(failure.local_rank)
    if failure.exitcode < 0:
        cause = f"was killed by {signal.Signals(-failure.exitcode).name}"
        if failure.exitcode == -signal.SIGKILL:
            cause += " (by hand, or by the kernel for want of memory: see dmesg)"
    else:
        cause = f"failed: {message_of(failure)}"
    return f"rank {failure.local_rank} {cause}\nIts log: {log}"


def message_of(failure: ProcessFailure) -> str:
    """A rank's own error, as it recorded it: text, or text with details beside it."""
    message: Any = failure.message
    return str(message.get("message", message) if isinstance(message, dict) else message).strip()


@contextmanager
def _signals_passed_on() -> Iterator[None]:
    """SIGTERM, SIGINT and SIGUSR2 ask every rank to save and stop; a second SIGINT ends them at once."""
    asked = 0

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal asked
        asked += number == signal.SIGINT
        for child in psutil.Process().children():
            if number == signal.SIGINT and asked > 1:
                child.kill()
            else:
                child.send_signal(signal.SIGTERM if number == signal.SIGINT else number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    if threading.current_thread() is not threading.main_thread():  # a notebook's thread cannot hear signals
        yield
        return
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
