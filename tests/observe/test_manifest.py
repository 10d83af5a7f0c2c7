"""What a run ran on: every start kept, nothing private."""

import json
import subprocess
from pathlib import Path

import pytest

from shardwright.observe import manifest as module
from shardwright.observe import read_manifest, write_manifest
from shardwright.spec import BadInput
from shardwright.spec.toml import from_mapping
from shardwright.version import __version__


def test_fields(directory, run):
    write_manifest(
        directory,
        run,
        data_fingerprint="abc",
        world=2,
        devices=["NVIDIA H200", "NVIDIA H200"],
        extra={"resumed_from": 40},
        command=["shardwright", "train", "--set", "data.source=s3://user:hunter2@store/text"],
    )
    manifest = json.loads(directory.manifest.read_text())
    assert manifest == read_manifest(directory)
    assert from_mapping(manifest["configuration"]) == run
    assert manifest["seed"] == run.seed
    assert (manifest["data_fingerprint"], manifest["world"], manifest["resumed_from"]) == ("abc", 2, 40)
    assert manifest["command"][-1] == "data.source=s3://(hidden)@store/text"
    assert manifest["shardwright"]["version"] == __version__
    assert {"torch", "numpy"} <= set(manifest["packages"])
    assert manifest["hardware"]["devices"] == ["NVIDIA H200", "NVIDIA H200"]
    assert manifest["hardware"]["cores"] >= 1
    assert manifest["hardware"]["memory_gib"] > 0
    assert manifest["hardware"]["processor"]
    assert manifest["started"].endswith("+00:00")
    assert manifest["python"].startswith("3.")
    assert manifest["platform"]


def test_every_start_is_kept(directory, run):
    for world in (1, 2, 4):
        write_manifest(directory, run, data_fingerprint=None, world=world, devices=["cpu"] * world)
    manifest = read_manifest(directory)
    assert manifest is not None
    assert [start["world"] for start in manifest["starts"]] == [1, 2, 4]
    assert manifest["world"] == 4
    assert not list(directory.path.glob(".*"))


def test_a_spoilt_manifest_is_not_overwritten(directory, run):
    directory.manifest.write_text('{"starts": [{"world"')
    with pytest.raises(BadInput, match="is not a manifest any more"):
        write_manifest(directory, run, data_fingerprint=None, world=1, devices=["cpu"])
    assert directory.manifest.read_text() == '{"starts": [{"world"'
    assert read_manifest(directory) is None


def test_no_secrets():
    kept = module.environment(
        {
            "OMP_NUM_THREADS": "2",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "NCCL_DEBUG": "INFO",
            "TORCH_LOGS": "+dynamo",
            "TORCH_HUB_TOKEN": "x",
            "NCCL_SOMETHING": "ghp_0123456789abcdefghijklmnopqrstuvwxyz",
            "AWS_SECRET_ACCESS_KEY": "y",
            "HOME": "/somewhere",
        }
    )
    assert kept == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "2",
        "TORCH_LOGS": "+dynamo",
    }


def test_the_commit_is_that_of_the_source_tree_only(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def place(package: Path) -> None:
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
        monkeypatch.setattr(module.shardwright, "__file__", str(package / "__init__.py"))

    place(tmp_path / "shardwright")
    assert module.source_commit() == {"commit": None, "dirty": None}
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "all")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    here = {
        "commit": subprocess.run(
            ["git", f"--git-dir={tmp_path / '.git'}", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    }
    assert module.source_commit() == {**here, "dirty": False}
    (tmp_path / "shardwright" / "new.py").touch()
    assert module.source_commit() == {**here, "dirty": True}
    # Installed into an environment inside somebody's repository: their commit is not ours.
    place(tmp_path / ".venv" / "site-packages" / "shardwright")
    assert module.source_commit() == {"commit": None, "dirty": None}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module.source_commit() == {"commit": None, "dirty": None}
