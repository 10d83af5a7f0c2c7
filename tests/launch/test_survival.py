"""Runs that are stopped, killed and started again, for real: the command, its ranks, their signals."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import lines_of, rank_processes, shardwright, started, steps_done, wait_until

RUN = """
name = "survivor"
seed = 3
steps = 40
[model]
preset = "tiny"
layers = 2
[data]
sequence = 64
[batch]
sequences = 8
[layout]
dp = 2
microbatch = 2
precision = "fp32"
[checkpoint]
every = 10
"""


def mathematics(directory: Path) -> list[dict[str, Any]]:
    """What a run computed, bit for bit: losses and norms, not times."""
    wanted = ("step", "tokens", "loss", "grad_norm", "learning_rate")
    return [{name: record[name] for name in wanted} for record in lines_of(directory / "metrics.jsonl")]


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("survival") / "run.toml"
    file.write_text(RUN)
    return file


@pytest.fixture(scope="module")
def uninterrupted(run_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    runs = tmp_path_factory.mktemp("uninterrupted")
    data = str(tmp_path_factory.getbasetemp() / "data")
    done = shardwright("train", str(run_file), "--runs", str(runs), SHARDWRIGHT_DATA=data)
    assert done.returncode == 0, done.stderr
    return mathematics(runs / "survivor")


def events(runs: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in lines_of(runs / "survivor" / "events.jsonl") if event["kind"] == kind]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_asked_to_stop_it_saves_and_goes_on_bit_for_bit(
    number: signal.Signals, run_file: Path, tmp_path: Path, uninterrupted: list[dict[str, Any]]
) -> None:
    with started("train", str(run_file), "--runs", str(tmp_path)) as process:
        wait_until(lambda: steps_done(tmp_path / "survivor") >= 13, process=process)
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    assert "The same command goes on from there" in output
    stopped_at = steps_done(tmp_path / "survivor")
    assert 13 <= stopped_at < 40
    assert events(tmp_path, "stop")[0]["step"] == stopped_at

    again = shardwright("train", str(run_file), "--runs", str(tmp_path))
    assert again.returncode == 0, again.stderr
    assert f"resumed at step {stopped_at}" in again.stdout
    assert mathematics(tmp_path / "survivor") == uninterrupted


def test_a_killed_rank_is_named_and_the_run_goes_on_from_its_checkpoint(
    run_file: Path, tmp_path: Path, uninterrupted: list[dict[str, Any]]
) -> None:
    with started("train", str(run_file), "--runs", str(tmp_path)) as process:
        wait_until(lambda: steps_done(tmp_path / "survivor") >= 13, process=process)
        rank_processes(process)[1].kill()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "rank 1 was killed by SIGKILL" in output
    assert "Traceback" not in output

    again = shardwright("train", str(run_file), "--runs", str(tmp_path))
    assert again.returncode == 0, again.stderr
    assert "resumed at step 10" in again.stdout
    assert mathematics(tmp_path / "survivor") == uninterrupted


def test_restarts_happen_by_themselves_when_allowed(
    run_file: Path, tmp_path: Path, uninterrupted: list[dict[str, Any]]
) -> None:
    with started("train", str(run_file), "--runs", str(tmp_path), "--set", "guard.restarts=1") as process:
        wait_until(lambda: steps_done(tmp_path / "survivor") >= 23, process=process)
        rank_processes(process)[0].kill()
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert events(tmp_path, "restart")[0]["step"] == 20
    assert mathematics(tmp_path / "survivor") == uninterrupted


def test_ranks_do_not_outlive_their_supervisor(run_file: Path, tmp_path: Path) -> None:
    with started("train", str(run_file), "--runs", str(tmp_path), "--set", "steps=100000") as process:
        wait_until(lambda: steps_done(tmp_path / "survivor") >= 1, process=process)
        ranks = list(rank_processes(process).values())
        assert len(ranks) == 2
        process.kill()
        process.communicate(timeout=30)
    _, alive = psutil.wait_procs(ranks, timeout=20)
    assert not alive


def test_started_by_torchrun_it_joins(run_file: Path, tmp_path: Path, uninterrupted: list[dict[str, Any]]) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = ("-m", "shardwright", "train", str(run_file), "--runs", str(tmp_path))
    with started(*command, command=torchrun, OMP_NUM_THREADS="1") as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count("held-out loss  ") == 1  # one speaker
    assert mathematics(tmp_path / "survivor") == uninterrupted


def test_started_by_srun_it_joins(run_file: Path, tmp_path: Path, uninterrupted: list[dict[str, Any]]) -> None:
    """SLURM's variables as srun sets them for two tasks of a step."""
    shared = {
        "SLURM_NTASKS": "2",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "OMP_NUM_THREADS": "1",
    }
    command = ("train", str(run_file), "--runs", str(tmp_path))
    with (
        started(*command, SLURM_PROCID="0", SLURM_LOCALID="0", **shared) as first,
        started(*command, SLURM_PROCID="1", SLURM_LOCALID="1", **shared) as second,
    ):
        tasks = (first, second)
        outputs = [task.communicate(timeout=120)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    assert mathematics(tmp_path / "survivor") == uninterrupted


def test_fewer_ranks_go_on_with_the_same_batches(
    run_file: Path, tmp_path: Path, uninterrupted: list[dict[str, Any]]
) -> None:
    """Another number of ranks is another layout of the same run: the same losses to rounding."""
    first = shardwright("train", str(run_file), "--runs", str(tmp_path), "--ranks", "1")
    assert first.returncode == 0, first.stderr
    for mine, theirs in zip(mathematics(tmp_path / "survivor"), uninterrupted, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
