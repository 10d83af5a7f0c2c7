"""The folder of a run: `runs/NAME/`, with everything that is known about it.

    run.toml          the run as resolved
    manifest.json     what it ran on, each time it was started
    metrics.jsonl     one object a step
    events.jsonl      one object for each thing that happened
    checkpoints/      step-00000100/ …
    traces/           Chrome traces
    logs/             rank-000.log …
    lock              held by the process that runs it

The same command again resumes, so a folder may only be opened for a run that computes what it already holds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from shardwright.observe.files import last_record, sync_folder, write_atomically, write_durably
from shardwright.spec import BadInput, RunFile, RunSpec
from shardwright.spec.errors import show
from shardwright.spec.fields import plain

SAME_MATHEMATICS = (
    "name",
    "model.name",
    "device",
    "layout",
    "checkpoint",
    "guard",
    "observe",
    "batch.accumulation",
    "data.folder",
    "data.workers",
)
"""What may differ between two starts of one run: where and how it computes, not what."""


def runs_folder(explicit: str | None) -> Path:
    """Where run directories are: the folder given, else SHARDWRIGHT_RUNS, else ./runs."""
    return Path(explicit or os.environ.get("SHARDWRIGHT_RUNS") or "runs")


class RunDirectory:
    """One run's folder. `open` makes or resumes it and holds its lock; `at` only looks at it."""

    def __init__(self, path: Path, lock: int | None = None) -> None:
        self.path = path
        """The folder itself."""
        self._lock = lock

    @classmethod
    def open(cls, runs: Path, run: RunSpec, text: str, *, fresh: bool = False) -> RunDirectory:
        """The run's own folder, made where it is not there, and locked until `close` or the end of the process.

        `text` is the resolved run file. A folder that holds a run with other mathematics is refused, each difference
        named; with `fresh`, so is any that is there.
        """
        path = runs / run.name
        try:
            runs.mkdir(parents=True, exist_ok=True)
            directory = None if _holds_something(path) else cls._create(path, text)
            if directory is None:
                directory = cls._reopen(path, run, text, fresh=fresh)
        except OSError as error:
            raise _unusable(path, error) from None
        return directory

    @classmethod
    def at(cls, path: str | Path) -> RunDirectory:
        """A run directory that is already there, for reading; no lock is taken."""
        folder = Path(path)
        if not (folder / "run.toml").is_file():
            rule = (
                "is not a run directory: there is no run.toml in it" if folder.is_dir() else "there is no such folder"
            )
            raise BadInput("RUN_DIR", str(path), rule=rule, fix=_known_runs(folder.parent))
        return cls(folder)

    @classmethod
    def _create(cls, path: Path, text: str) -> RunDirectory | None:
        """A new folder, complete and locked before it has its name; None when another process was faster."""
        building = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
        building.mkdir()
        lock = None
        try:
            lock = _take_lock(building / "lock")
            write_durably(building / "run.toml", text)
            for name in ("checkpoints", "traces", "logs"):
                (building / name).mkdir()
            sync_folder(building)
            building.rename(path)
        except BaseException as error:
            if lock is not None:
                os.close(lock)
            shutil.rmtree(building, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return None
            raise
        sync_folder(path.parent)
        return cls(path, lock)

    @classmethod
    def _reopen(cls, path: Path, run: RunSpec, text: str, *, fresh: bool) -> RunDirectory:
        directory = cls(path)
        other_name = f"Use another name (--set name={run.name}-2), or remove the folder"
        if not directory.run_file.is_file():
            raise BadInput(
                "name", run.name, rule=f"{path} is there and is not a run: it has no run.toml", fix=other_name
            )
        if fresh:
            raise BadInput(
                "name",
                run.name,
                rule=f"{path} is already there and stands at step {directory.latest_step()}; --fresh never overwrites",
                fix=other_name,
            )
        directory._lock = _take_lock(path / "lock")
        try:
            found = differences(directory.stored_run(), run)
            if found:
                raise BadInput(
                    "name",
                    run.name,
                    rule=f"{path} holds a run that computes something else: {'; '.join(found)}",
                    fix=f"Use another name (--set name={run.name}-2) for this one, or undo the difference",
                )
            if directory.run_file.read_text("utf-8") != text:
                write_atomically(directory.run_file, text)
            for folder in (directory.checkpoints, directory.traces, directory.logs):
                folder.mkdir(exist_ok=True)
        except BaseException:
            directory.close()
            raise
        return directory

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def run_file(self) -> Path:
        """The run as resolved."""
        return self.path / "run.toml"

    @property
    def manifest(self) -> Path:
        """What it ran on."""
        return self.path / "manifest.json"

    @property
    def metrics(self) -> Path:
        """One object a step."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """One object for each thing that happened."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def traces(self) -> Path:
        """Folder of the traces."""
        return self.path / "traces"

    @property
    def logs(self) -> Path:
        """Folder of what each rank printed."""
        return self.path / "logs"

    def log_file(self, rank: int) -> Path:
        """`logs/rank-000.log`."""
        return self.logs / f"rank-{rank:03d}.log"

    @property
    def locked(self) -> bool:
        """Whether this object holds the lock; False after `open` only where the file system cannot lock at all."""
        return self._lock is not None

    def stored_run(self) -> RunSpec:
        """The run that this folder holds."""
        return RunFile.read(self.run_file).spec()

    def latest_step(self) -> int:
        """The last step whose metrics were written; 0 before the first."""
        record = last_record(self.metrics, "step")
        return int(record["step"]) if record else 0

    def close(self) -> None:
        """Release the lock; once more does nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def differences(there: RunSpec, here: RunSpec) -> list[str]:
    """Each thing in which two runs compute something different: `seed: 42 there, 43 here`."""
    old, new = _flat(plain(there)), _flat(plain(here))
    harmless = set(SAME_MATHEMATICS)
    if there.schedule.name == here.schedule.name == "constant":
        harmless.add("steps")  # a flat learning rate does not depend on where the run ends
    found = []
    for path in [*old, *(path for path in new if path not in old)]:
        parts = path.split(".")
        if any(".".join(parts[:count]) in harmless for count in range(1, len(parts) + 1)):
            continue
        if old.get(path) != new.get(path):
            found.append(f"{path}: {_shown(old.get(path))} there, {_shown(new.get(path))} here")
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, by dotted path."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _shown(value: Any) -> str:
    return "not set" if value is None else show(value)


def _take_lock(path: Path) -> int | None:
    """Hold the lock file, or say who does; None where the file system has no locks (Lustre without -o flock)."""
    # flock, not a file that says "taken": the kernel lets go of it when the last process that holds it dies, even by
    # SIGKILL. Ranks forked from the holder hold it too, so that orphans still at work keep a second start out.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise BadInput(
            "name", path.parent.name, rule=f"is being run by {holder}", fix="Wait for it, stop it, or use another name"
        ) from None
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            return None
        raise
    return descriptor


def _holds_something(path: Path) -> bool:
    """Whether there is something at a path that a new folder could not take the place of."""
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


def _unusable(path: Path, error: OSError) -> BadInput:
    """A disk's complaint, in the user's words."""
    fixes = {
        errno.ENOSPC: "Free some space there, or choose another folder with --runs",
        errno.EDQUOT: "Free some of your quota there, or choose another folder with --runs",
    }
    fix = fixes.get(error.errno or 0, "Choose another folder with --runs or SHARDWRIGHT_RUNS")
    return BadInput("--runs", str(path.parent), rule=f"{path.name} cannot be written there: {error.strerror}", fix=fix)


def _known_runs(folder: Path) -> str | None:
    """The runs beside a name that is not one."""
    if not folder.is_dir():
        return None
    names = sorted(entry.name for entry in folder.iterdir() if (entry / "run.toml").is_file())
    return f"Runs there: {', '.join(names)}" if names else None
