"""Options that several commands share, each described once."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from shardwright.spec import RunFile
from shardwright.spec.toml import parse_settings

Settings = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set", negative=(), show_default=False, help="Change a value: --set layout.dp=4. May be repeated."
    ),
]
Json = Annotated[
    bool, Parameter(name="--json", negative=(), show_default=False, help="One JSON object on standard output.")
]
Runs = Annotated[str | None, Parameter(name="--runs", help="Folder of run directories (SHARDWRIGHT_RUNS, or ./runs).")]


def run_file(path: str | None, settings: tuple[str, ...]) -> RunFile:
    """The run that was named (a file, or a run directory); `first`, or nothing, is the default one."""
    if path is None or (path == "first" and not Path(path).exists()):
        text = resources.files("shardwright.spec").joinpath("data", "first.toml").read_text("utf-8")
        return RunFile(text, "first.toml", parse_settings(settings))
    if Path(path).is_dir():
        path = str(Path(path) / "run.toml")
    return RunFile.read(path, settings)
