"""This process among the others: its rank, its device, and the few sums that a step needs.

A launcher (ours, torchrun, srun through `shardwright.launch`) says who we are in torchrun's environment variables;
alone, a process is a world of one and needs no process group at all.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from shardwright.spec import BadInput


@dataclass(frozen=True)
class World:
    """Who this process is."""

    rank: int
    """Number of this process among all."""
    size: int
    """How many there are."""
    local_rank: int
    """Number of this process on its machine."""
    device: torch.device
    """Where it computes."""

    @classmethod
    @contextmanager
    def joined(cls, device: str, timeout: float) -> Iterator[World]:
        """Join the world that the environment describes, and leave it at the end.

        Every collective has a deadline: one that does not finish within `timeout` seconds raises.
        """
        names = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
        rank, size, local_rank = (int(os.environ.get(name, alone)) for name, alone in names)
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        world = cls(rank, size, local_rank, choose_device(device, local_rank, local_size))
        if world.device.type == "cuda":
            torch.cuda.set_device(world.device)
        if size > 1:
            _meet(world, timedelta(seconds=timeout))
        try:
            yield world
        finally:
            if dist.is_initialized():
                # What still refers to a group in a ring of references keeps gloo's threads alive past its destruction,
                # and they abort the process as it ends.
                gc.collect()
                dist.destroy_process_group()

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place; nothing to do alone."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def agree(self, text: str | None) -> str | None:
        """What rank 0 says, on every rank: for decisions that only it can make."""
        if self.size == 1:
            return text
        said = [text]
        dist.broadcast_object_list(said, src=0, device=self.device)
        return said[0]


def _meet(world: World, timeout: timedelta) -> None:
    """Make the process group of all ranks.

    TorchElastic keeps one store over all restarts, and after a restart ranks would find the addresses of their dead
    predecessors in it: each attempt has a prefix of its own.
    """
    store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    on_gpu = world.device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.PrefixStore(f"attempt-{attempt}", store),
        rank=rank,
        world_size=size,
        timeout=timeout,
        device_id=world.device if on_gpu else None,
    )


def choose_device(wanted: str, local_rank: int, local_size: int) -> torch.device:
    """A GPU for each rank of a machine, or the CPU for all of them."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and gpus < local_size):
        return torch.device("cpu")
    if gpus <= local_rank:
        raise BadInput(
            "device",
            wanted,
            rule=f"rank {local_rank} of this machine needs a GPU of its own, and there are {gpus}",
            fix='Use fewer ranks, or device = "cpu"',
        )
    return torch.device("cuda", local_rank)
