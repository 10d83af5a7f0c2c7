"""Processes that tokenise, each a fresh interpreter that runs `work`.

Not `multiprocessing.Pool`: forking a process that has torch's threads in it can deadlock, and spawning imports the
user's own script again, with torch and whatever it does when imported. A worker here imports what it needs and no more
(a tenth of a second), talks over one pipe, and ends by itself when that pipe closes, however its parent ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

import shardwright
from shardwright.data.encode import Encoded, Job, Report, encode
from shardwright.data.tokenizers import Tokenizer


def encode_all(jobs: Sequence[Job], tokenizer: Tokenizer, workers: int, report: Report) -> Iterator[Encoded]:
    """Do jobs in this process, or in several; the results come in any order. The first error ends them all."""
    if workers <= 1:
        for job in jobs:
            yield encode(job, tokenizer, report)
        return
    waiting = iter(jobs)
    running: dict[Connection, subprocess.Popen[bytes]] = {}
    try:
        for _ in range(workers):
            ours, process = _start()
            running[ours] = process
            _send(process, ours, tokenizer)
            _send(process, ours, next(waiting, None))
        while running:
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv()
                except (EOFError, ConnectionResetError):
                    raise _died(running[pipe]) from None
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, Encoded):
                    yield message
                    _send(running[pipe], pipe, next(waiting, None))
                elif isinstance(message, tuple):
                    report(*message)
                else:
                    running.pop(pipe).wait()
                    pipe.close()
    finally:
        for pipe, process in running.items():
            process.kill()
            process.wait()
            pipe.close()


def _start() -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = Pipe()
    # The package may have been found by a path that only this process knows; `-P` keeps the current folder, which may
    # hold a numpy.py, off the new one's.
    paths = [str(Path(shardwright.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # One process a core is parallel enough.
        "TOKENIZERS_PARALLELISM": "false",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", "-c", f"from {__name__} import work; work({theirs.fileno()})"]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
    theirs.close()
    return ours, process


def _send(process: subprocess.Popen[bytes], pipe: Connection, message: object) -> None:
    try:
        pipe.send(message)
    except (BrokenPipeError, ConnectionResetError):
        raise _died(process) from None


def _died(process: subprocess.Popen[bytes]) -> ChildProcessError:
    code = process.wait()
    cause = "probably for want of memory: use fewer data.workers" if code == -9 else "see its message above"
    return ChildProcessError(f"a process that prepares data (pid {process.pid}) ended with code {code}, {cause}")


def work(descriptor: int) -> None:
    """The life of a worker: a tokenizer, then jobs until there is none; an error is sent, and ends it."""
    pipe = Connection(descriptor)
    try:
        tokenizer = pipe.recv()
        while (job := pipe.recv()) is not None:
            pipe.send(encode(job, tokenizer, lambda *done: pipe.send(done)))
        pipe.send(None)
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        sys.exit(1)  # the parent is gone, or is ending us and has said why
    except Exception as error:
        pipe.send(error)
