"""Who started this process: torchrun, srun, or nobody.

torchrun says it in RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. srun has its own names for the same
things; they are translated once, here, and nothing else knows of SLURM.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping

from shardwright.spec import BadInput

DYNAMIC_PORTS = range(20_000, 60_000)


def is_joined(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether another launcher started us as one rank of several."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def adopt_slurm(environment: MutableMapping[str, str] = os.environ) -> None:
    """In a step that srun started, set torchrun's variables from SLURM's.

    A batch script is a task of SLURM's too, but not of a step: there SLURM_STEP_ID is missing and we are alone.
    """
    if is_joined(environment) or "SLURM_STEP_ID" not in environment or "SLURM_PROCID" not in environment:
        return
    if int(environment.get("SLURM_NTASKS", "1")) == 1:
        return
    environment["RANK"] = environment["SLURM_PROCID"]
    environment["WORLD_SIZE"] = environment["SLURM_NTASKS"]
    environment["LOCAL_RANK"] = environment.get("SLURM_LOCALID", "0")
    tasks = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))  # `2(x3),1`: of the first node
    if tasks:
        environment["LOCAL_WORLD_SIZE"] = tasks.group()
    if "MASTER_ADDR" not in environment:
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        environment["MASTER_ADDR"] = first_host(nodes)
    if "MASTER_PORT" not in environment:
        # The same on every rank without asking anyone, and different for jobs that share a node.
        job = int(environment.get("SLURM_JOB_ID", "0")) * 31 + int(environment.get("SLURM_STEP_ID", "0"))
        environment["MASTER_PORT"] = str(DYNAMIC_PORTS[job % len(DYNAMIC_PORTS)])


def first_host(nodes: str) -> str:
    """The first name of a SLURM host list: `gpu[007-010,12],other` → `gpu007`."""
    match = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\])?([^,]*)", nodes)
    if not match:
        raise BadInput("SLURM_JOB_NODELIST", nodes, rule="names no host", fix="Set MASTER_ADDR")
    return match.group(1) + (match.group(2) or "") + match.group(3)
