"""Every mistake ends in one message that names field, value, rule and fix; exit code 2; nothing half-written."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from shardwright.cli.app import run
from tests.processes import shardwright

RUN = """
name = "mine"
steps = 2
[model]
preset = "tiny"
layers = 1
[data]
sequence = 32
[batch]
sequences = 4
[layout]
microbatch = 2
precision = "fp32"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run file and some data, good and bad."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin" / "a.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "a.txt").write_text("too short")
    return tmp_path


BAD = {
    "unknown section": (["layot.dp=2"], ["--set layot.dp", "layot: unknown key", 'Did you mean "layout"?']),
    "unknown key": (["optimizer.lr=1"], ["optimizer.lr: unknown key", "Known: ", "learning_rate"]),
    "unknown preset": (["model.preset=tinny"], ['model.preset = "tinny"', "no such model", 'Did you mean "tiny"']),
    "wrong type": (["steps=many"], ['steps = "many"', "must be a whole number, not text"]),
    "batch does not divide": (
        ["batch.sequences=6", "layout.microbatch=4"],
        ["batch.sequences = 6", "6 = microbatch 4 × accumulation ? × data ranks 1", "6 / 4 = 1.5", "Use 4 or 8"],
    ),
    "heads do not divide": (["model.heads=6", "model.kv_heads=4"], ["model.kv_heads = 4", "must divide heads = 6"]),
    "missing data": (["data.source=nowhere"], ['data.source = "nowhere"', "no such"]),
    "empty data": (["data.source=empty"], ['data.source = "empty"', "empty"]),
    "not UTF-8": (["data.source=latin"], ["not UTF-8", "byte 3", "data.bad_text"]),
    "too little data": (["data.source=short", "data.held_out=0"], ["data.sequence = 32", "need 33"]),
    "vocabulary too small": (["model.vocabulary=128"], ["model.vocabulary = 128", "257"]),
    "not yet trained": (["layout.recompute=full"], ["layout.recompute = ", "can be planned but not yet trained"]),
    "context too short": (["model.context=16"], ["data.sequence = 32", "context of 16"]),
}


@pytest.mark.parametrize(("settings", "words"), BAD.values(), ids=BAD)
def test_said_once_and_nothing_written(
    settings: list[str], words: list[str], here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = [part for setting in settings for part in ("--set", setting)]
    before = sorted(here.rglob("*"))
    assert run(["train", "run.toml", *flags]) == 2
    captured = capfd.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert all(line.startswith("preparing ") for line in captured.out.splitlines())
    for word in words:
        assert word in captured.err
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ['Unknown command "trian"', 'Did you mean "train"']),
        (["train", "--rank", "2"], ["--rank", "--ranks"]),
        (["train", "--ranks", "two"], ["two", "int"]),
        (["train", "--ranks", "0"], ["--ranks = 0", "at least 1"]),
        (["train", "nowhere.toml"], ["nowhere.toml", "no such file"]),
        (["train", "--set", "steps"], ['--set = "steps"', "name=value"]),
        (["show", "llama3-7b"], ['"llama3-7b"', 'Did you mean "llama3-']),
        (["show", "8xh10"], ['"h10"', 'Did you mean "h100"']),
        (["data", "prepare", "--set", "data.source=nowhere"], ['"nowhere"']),
    ],
)
def test_commands(arguments: list[str], words: list[str], here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert here.is_dir()
    assert run(arguments) == 2
    captured = capfd.readouterr()
    assert captured.err.count("\n") == 1
    for word in words:
        assert word in captured.err


def test_the_line_of_a_mistake_is_named(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "run.toml").write_text(RUN.replace("precision", "precison"))
    assert run(["train", "run.toml"]) == 2
    assert 'run.toml:13: layout.precison: unknown key. Did you mean "precision"?' in capfd.readouterr().err


def test_a_directory_of_another_run_is_refused(here: Path) -> None:
    assert shardwright("train", str(here / "run.toml"), "--runs", str(here / "runs")).returncode == 0
    before = (here / "runs" / "mine" / "run.toml").read_text()
    other = shardwright(
        "train", str(here / "run.toml"), "--runs", str(here / "runs"), "--set", "optimizer.learning_rate=0.5"
    )
    assert other.returncode == 2
    assert "optimizer.learning_rate" in other.stderr
    assert "0.001" in other.stderr
    assert "0.5" in other.stderr
    fresh = shardwright("train", str(here / "run.toml"), "--runs", str(here / "runs"), "--fresh")
    assert fresh.returncode == 2
    assert "step 2" in fresh.stderr
    assert (here / "runs" / "mine" / "run.toml").read_text() == before


def test_a_disk_too_small_for_the_checkpoints_is_said_first(here: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        ended = shardwright("train", str(here / "run.toml"), "--runs", str(disk), "--set", "model.layers=8")
        assert ended.returncode == 2
        assert "checkpoint.keep = 2" in ended.stderr
        assert "GiB free" in ended.stderr
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_more_ranks_than_cores_is_a_warning(here: Path) -> None:
    done = shardwright("train", str(here / "run.toml"), "--runs", str(here / "runs"), "--ranks", "4",
                       "--set", "batch.sequences=8", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    import os

    if len(os.sched_getaffinity(0)) < 4:
        assert "warning: 4 ranks on" in done.stderr
    assert json.loads(done.stdout)["ranks"] == 4  # standard output holds one object and nothing else
