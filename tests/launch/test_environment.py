"""Who started us."""

from __future__ import annotations

import pytest

from shardwright.launch.environment import adopt_slurm, first_host, is_joined
from shardwright.spec import BadInput

STEP = {
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
}


def test_a_step_of_srun_is_joined() -> None:
    environment = dict(STEP)
    adopt_slurm(environment)
    assert is_joined(environment)
    assert environment["RANK"] == "9"
    assert environment["WORLD_SIZE"] == "16"
    assert environment["LOCAL_RANK"] == "1"
    assert environment["LOCAL_WORLD_SIZE"] == "8"
    assert environment["MASTER_ADDR"] == "gpu007"
    other = dict(STEP, SLURM_PROCID="0", SLURM_LOCALID="0")
    adopt_slurm(other)
    assert other["MASTER_PORT"] == environment["MASTER_PORT"]
    assert 1024 < int(environment["MASTER_PORT"]) < 65536


def test_a_batch_script_is_alone() -> None:
    environment = {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}
    adopt_slurm(environment)
    assert not is_joined(environment)


def test_torchrun_inside_slurm_wins() -> None:
    environment = dict(STEP, RANK="2", WORLD_SIZE="4", LOCAL_RANK="0", MASTER_ADDR="a", MASTER_PORT="1")
    before = dict(environment)
    adopt_slurm(environment)
    assert environment == before


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("gpu[007-010,12],x", "gpu007"), ("a[3,5]-ib", "a3-ib"), ("r-2-[11-14]", "r-2-11")],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_no_host_is_said() -> None:
    with pytest.raises(BadInput, match="names no host"):
        first_host("")
