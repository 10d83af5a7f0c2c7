"""Warm processes that become the ranks of a gloo world when a test asks: eight ranks in a fraction of a second.

Processes come from a forkserver that has loaded torch once, one thread each. A call runs one function on ranks 0 … n−1
and returns what each returned; an exception on a rank is raised here with that rank's traceback; a call that outlasts
its deadline kills the pool's processes, so that a hang in one test cannot reach the next.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any

PRELOADED = ["torch", "torch.distributed", "shardwright.train.loop", "shardwright.guard.rank"]


class RankFailure(AssertionError):
    """A rank raised; its traceback is the message."""


def _serve(connection: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            function, arguments, environment = connection.recv()
        except EOFError:
            return
        os.environ.update(environment)
        try:
            result = (True, function(*arguments))
        except BaseException:
            result = (False, traceback.format_exc())
        connection.send(result)


class RankPool:
    """Grows to the largest number of ranks that a test has asked for."""

    def __init__(self) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._workers: list[tuple[Any, Connection]] = []

    def run(self, ranks: int, function: Callable[..., Any], *arguments: Any, deadline: float = 120.0) -> list[Any]:
        """`function(*arguments)` on every rank of a world of this size; its results in rank order."""
        while len(self._workers) < ranks:
            here, there = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            there.close()
            self._workers.append((process, here))
        port = str(_free_port())
        for rank in range(ranks):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            self._workers[rank][1].send((function, arguments, environment))
        return self._collect(ranks, monotonic() + deadline)

    def _collect(self, ranks: int, deadline: float) -> list[Any]:
        results: dict[int, Any] = {}
        failures: list[str] = []
        waiting = {self._workers[rank][1]: rank for rank in range(ranks)}
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - monotonic()))
            if not ready:
                self.close()
                raise RankFailure(f"ranks {sorted(waiting.values())} did not finish in time; {failures or 'no error'}")
            for connection in ready:
                rank = waiting.pop(connection)  # type: ignore[call-overload]
                try:
                    succeeded, value = connection.recv()  # type: ignore[union-attr]
                except EOFError:
                    succeeded, value = False, "the process died"
                if succeeded:
                    results[rank] = value
                else:
                    failures.append(f"rank {rank}: {value}")
        if failures:
            self.close()  # a failed world is dead: fresh processes for the next test
            raise RankFailure("\n".join(failures))
        return [results[rank] for rank in range(ranks)]

    def close(self) -> None:
        """End all processes."""
        for process, connection in self._workers:
            connection.close()
            process.kill()
            process.join()
        self._workers = []


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
