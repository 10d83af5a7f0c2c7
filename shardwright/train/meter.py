"""From what a step leaves on the device to one line of `metrics.jsonl`, without stalling the device.

Each step ends in one small sum over the ranks: the loss, the token count, whether anyone was asked to stop, and in each
rank's own slots its time and memory. On a GPU its result is read one step later, when it has long arrived, so that the
host can queue the next step meanwhile; on a CPU it is read at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from shardwright.cost.flops import mfu, model_flops_per_token
from shardwright.observe import peak_memory
from shardwright.parallel import Mesh, World
from shardwright.spec import Device, RunSpec

GIB = 2**30
SHARED = 4
"""Slots that all ranks add to: loss, balance loss, tokens, stop requests."""


@dataclass
class _Pending:
    step: int
    learning_rate: float
    data_seconds: float
    stats: Tensor
    norm: Tensor
    clock: StepClock


class StepClock:
    """Seconds that a step took on this rank: the host's clock, or the GPU's own where the host runs ahead."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.started = perf_counter()
        self.ended = self.started
        if self.on_gpu:
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self.events[0].record()

    def stop(self) -> None:
        """The step's last work has been queued."""
        self.ended = perf_counter()
        if self.on_gpu:
            self.events[1].record()

    def seconds(self) -> float:
        """How long it took; on a GPU, waits for the step to end."""
        if self.on_gpu:
            self.events[1].synchronize()
            return self.events[0].elapsed_time(self.events[1]) / 1000
        return self.ended - self.started


class Meter:
    """Collects steps and hands back finished records."""

    def __init__(self, run: RunSpec, world: World, mesh: Mesh) -> None:
        self.run, self.world, self.mesh = run, world, mesh
        self.lag = 1 if world.device.type == "cuda" else 0
        self.flops_per_token = model_flops_per_token(run.model, run.data.sequence)
        self.device = device_of(world.device)
        self.pending: deque[_Pending] = deque()
        self.last_seconds = 0.0
        self.memory = 0
        # Of all steps but the first, which warms up.
        self.warm, self.timed_tokens, self.timed_seconds = False, 0, 0.0

    def push(
        self, step: int, *, next_token: Tensor, balance: Tensor, tokens: Tensor, norm: Tensor, stop: bool,
        learning_rate: float, data_seconds: float, clock: StepClock,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Note a step; returns the records that are finished by now, oldest first."""
        world = self.world
        self.memory = max(self.memory, memory_in_use(world.device))
        own = torch.zeros(SHARED + 2 * world.size, dtype=torch.float64)
        own[3] = float(stop)
        own[SHARED + world.rank] = self.last_seconds
        own[SHARED + world.size + world.rank] = float(self.memory)
        stats = own.to(world.device, non_blocking=True)
        if self.mesh.speaks_for_its_data:
            stats[0], stats[1] = next_token, balance
        stats[2] = tokens / world.size  # `tokens` is the global count already
        world.sum(stats)
        clock.stop()
        self.pending.append(_Pending(step, learning_rate, data_seconds, stats, norm, clock))
        return self.drain(self.lag)

    @property
    def mean_rate(self) -> float | None:
        """Tokens a second of all ranks, over the steps that were timed; None before the second."""
        return self.timed_tokens / self.timed_seconds if self.timed_seconds else None

    def utilisation(self, rate: float) -> float | None:
        """MFU at this many tokens a second of all ranks together."""
        return mfu(rate / self.world.size, self.flops_per_token, self.device)

    def drain(self, leave: int = 0) -> list[dict[str, Any]]:
        """Records of all steps but the newest `leave`."""
        records = []
        while len(self.pending) > leave:
            records.append(self._record(self.pending.popleft()))
        return records

    def _record(self, step: _Pending) -> dict[str, Any]:
        seconds = step.clock.seconds()
        stats = step.stats.cpu().tolist()
        self.last_seconds = seconds
        size = self.world.size
        tokens = round(stats[2])
        rate = tokens / seconds
        self.timed_tokens += tokens * self.warm
        self.timed_seconds += seconds * self.warm
        self.warm = True
        record: dict[str, Any] = {
            "step": step.step,
            "tokens": step.step * self.run.tokens_per_step,
            "loss": stats[0] / tokens,
            "grad_norm": float(step.norm),
            "learning_rate": step.learning_rate,
            "step_seconds": seconds,
            "data_seconds": step.data_seconds,
            "tokens_per_second": rate,
            "tokens_per_second_per_gpu": rate / size,
            "mfu": self.utilisation(rate),
            "memory_gib": max(stats[SHARED + size :]) / GIB,
            "ranks": {
                "step_seconds": stats[SHARED : SHARED + size],
                "memory_gib": [value / GIB for value in stats[SHARED + size :]],
            },
        }
        if self.run.model.experts is not None:
            record["balance_loss"] = stats[1] / tokens
        # Not written: what the loop decides by.
        record["stop"] = stats[3] > 0
        return record


def device_of(device: torch.device) -> Device | None:
    """The catalogue's entry for a device; None where it is not known (MFU is then n/a, never a guess)."""
    if device.type != "cuda":
        return None
    return Device.reported(torch.cuda.get_device_name(device))


def memory_in_use(device: torch.device) -> int:
    """Peak bytes that this rank has held: allocated on a GPU, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_memory()
