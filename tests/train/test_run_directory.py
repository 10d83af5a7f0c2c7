"""What a run leaves behind: every file of the contract, with its fields."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from shardwright.spec import RunFile
from tests.ranks import RankPool
from tests.train.runs import records, train

METRICS = {
    "step", "tokens", "loss", "grad_norm", "learning_rate", "step_seconds", "data_seconds", "tokens_per_second",
    "tokens_per_second_per_gpu", "mfu", "memory_gib", "ranks",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(ranks, folder, 2, "checkpoint.every=4", "observe.evaluate_every=5", "observe.sample=12",
          "observe.tensorboard=true")  # fmt: skip
    return folder


def test_metrics(runs: Path) -> None:
    lines = records(runs)
    assert [line["step"] for line in lines] == list(range(1, 13))
    for line in lines:
        assert set(line) == METRICS
        assert line["tokens"] == line["step"] * 8 * 48
        assert line["tokens_per_second_per_gpu"] == pytest.approx(line["tokens_per_second"] / 2)
        assert line["mfu"] is None  # a processor's peak is not known
        assert len(line["ranks"]["step_seconds"]) == 2
    assert all(seconds > 0 for seconds in lines[-1]["ranks"]["step_seconds"])
    assert lines[-1]["memory_gib"] > 0.05


def test_events(runs: Path) -> None:
    events = records(runs, file="events.jsonl")
    assert all(set(event) == {"time", "kind", "step", "rank", "detail"} for event in events)
    assert [event["step"] for event in events if event["kind"] == "save"] == [4, 8, 12]
    assert [event["step"] for event in events if event["kind"] == "evaluate"] == [0, 5, 10, 12]
    assert events[0]["kind"] == "start"


def test_checkpoints_are_pruned(runs: Path) -> None:
    kept = sorted(path.name for path in (runs / "tiny" / "checkpoints").iterdir())
    assert kept == ["step-00000008", "step-00000012"]


def test_resolved_configuration(runs: Path) -> None:
    text = (runs / "tiny" / "run.toml").read_text()
    assert tomllib.loads(text)["batch"] == {"sequences": 8, "accumulation": 2}
    assert RunFile(text).spec().layout.dp == 2


def test_manifest(runs: Path) -> None:
    manifest = json.loads((runs / "tiny" / "manifest.json").read_text())
    text = json.dumps(manifest)
    assert manifest["seed"] == 7
    for word in ("torch", "python", "fingerprint", "world", "0.1.0"):
        assert word in text


def test_logs_and_tensorboard(runs: Path) -> None:
    for rank in range(2):
        log = (runs / "tiny" / "logs" / f"rank-{rank:03d}.log").read_text()
        assert f"rank {rank} of 2" in log
    assert list((runs / "tiny" / "tensorboard").iterdir())


def test_people_see_lines_not_carriage_returns(runs: Path) -> None:
    human = (runs / "human.txt").read_text()
    assert "\r" not in human
    assert "step 1/12  loss" in human
    assert "step 12/12  loss" in human
    assert "MFU n/a" in human
