"""What a run ran on, each time it was started: enough to do it again, and nothing that should stay private."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import shardwright
from shardwright.observe import host
from shardwright.observe.directory import RunDirectory
from shardwright.observe.files import write_atomically
from shardwright.observe.format import GIBIBYTE
from shardwright.spec import BadInput, RunSpec
from shardwright.spec.fields import plain
from shardwright.version import __version__

PACKAGES = (
    "torch",
    "numpy",
    "safetensors",
    "triton",
    "torchao",
    "tokenizers",
    "pyarrow",
    "psutil",
    "rich",
    "tomlkit",
    "cyclopts",
    "tensorboard",
)
"""Packages whose versions are written down, where they are installed."""

_VARIABLES = re.compile(r"(OMP|MKL)_NUM_THREADS|(CUDA|HIP)_VISIBLE_DEVICES|PYTORCH_\w+|(NCCL|GLOO|TORCH)_\w+")
_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"[A-Za-z0-9+_-]{32,}")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def write_manifest(
    directory: RunDirectory,
    run: RunSpec,
    *,
    data_fingerprint: str | None,
    world: int,
    devices: Sequence[str],
    extra: Mapping[str, Any] | None = None,
    command: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Write down this start of the run and return the manifest.

    The top level describes the newest start; `starts` holds every one, this one last. `devices` names the device of
    each rank; `extra` adds facts of the caller's; `command` is the command line where it is not this process's own.
    """
    start = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [_CREDENTIALS.sub("(hidden)@", word) for word in (sys.argv if command is None else command)],
        "configuration": plain(run),
        "seed": run.seed,
        "data_fingerprint": data_fingerprint,
        "world": world,
        "shardwright": {"version": __version__, **source_commit()},
        "packages": installed_packages(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hardware": {
            "host": socket.gethostname(),
            "processor": host.processor(),
            "cores": host.usable_cores(),
            "memory_gib": round(host.total_memory() / GIBIBYTE, 2),
            "devices": list(devices),
        },
        "environment": environment(os.environ),
        **(extra or {}),
    }
    manifest = {"name": run.name, **start, "starts": [*_earlier_starts(directory.manifest), start]}
    try:
        write_atomically(directory.manifest, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise BadInput(str(directory.manifest), rule=f"cannot be written: {error.strerror}") from None
    return manifest


def read_manifest(directory: RunDirectory) -> dict[str, Any] | None:
    """The manifest of a run; None before its first start, or where the file cannot be read as one."""
    try:
        manifest = json.loads(directory.manifest.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def source_commit() -> dict[str, Any]:
    """Commit of the source tree, and whether it was changed since; nulls where Shardwright is not a checkout."""
    package = Path(shardwright.__file__).resolve().parent
    top = _git(package, "rev-parse", "--show-toplevel")
    # Installed into an environment that lies inside somebody's repository, git would answer with their commit.
    if top is None or Path(top.strip()) != package.parent:
        return {"commit": None, "dirty": None}
    commit = _git(package, "rev-parse", "HEAD")
    changes = _git(package, "--no-optional-locks", "status", "--porcelain", "--", ".")
    return {
        "commit": commit.strip() if commit else None,
        "dirty": None if changes is None else bool(changes.strip()),
    }


def installed_packages() -> dict[str, str]:
    """Versions of the packages that results may depend on, read from their metadata: nothing is imported."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The few environment variables that change how a run computes; never one that looks like a secret."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if _VARIABLES.fullmatch(name) and not _SECRET_NAME.search(name) and not _SECRET_VALUE.search(value)
    }


def _earlier_starts(path: Path) -> list[Any]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(path), rule=f"cannot be read: {error}", fix="Move it away to start a new one") from None
    try:
        starts = json.loads(text)["starts"]
    except (ValueError, KeyError, TypeError):
        starts = None
    if not isinstance(starts, list):
        raise BadInput(str(path), rule="is not a manifest any more", fix="Move it away to start a new one")
    return starts


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says about a folder; None where it is absent, slow, or refuses."""
    # GIT_DIR and its like would make git speak of another repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout
