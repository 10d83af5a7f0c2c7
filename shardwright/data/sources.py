"""Where documents come from: the files of a source, and the pieces in which they are read.

`locate` finds the files and decides what they hold by looking; it only lists and stats, so that a corpus already
prepared is recognised at once. `pieces` then cuts them into parts that can be read independently and in parallel (a
file, a range of lines, a row group). `readers.py` turns a piece into documents.
"""

from __future__ import annotations

import fnmatch
import json
import os
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shardwright.data import columns
from shardwright.data.shards import is_corpus
from shardwright.spec.errors import BadInput, suggestion
from shardwright.spec.run import DataSpec

Kind = Literal["python", "text", "jsonl", "parquet", "arrow", "tokens"]

STANDARD_LIBRARY = "python-stdlib"
"""Name of the source that every machine has: the text of Python's own standard library."""

_NOT_LIBRARY = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
_SUFFIXES: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".npy": "tokens",
}
_BESIDE_DATA = (".md", ".json", ".yaml", ".yml", ".crc", ".lock")
_FORMATS: dict[str, Kind] = {"jsonl": "jsonl", "parquet": "parquet", "huggingface": "arrow", "tokens": "tokens"}
_LINES_PIECE = 2**25


@dataclass(frozen=True)
class Found:
    """A file of a source."""

    path: str
    """Where it is."""
    name: str
    """Its path inside the source."""
    size: int
    """Bytes."""
    changed: int
    """When it was last changed, in nanoseconds."""


@dataclass(frozen=True)
class Source:
    """The files of a source, found but not read."""

    kind: Kind
    """What they hold."""
    description: str
    """The source in words."""
    field: str
    """Field of the run that names it, for messages."""
    path: Path
    """The file or folder that was named."""
    files: tuple[Found, ...]
    """Its files, in the order in which they are read."""

    def identity(self) -> list[Any]:
        """What makes this source this source: another file, another size or a later change is another source."""
        if self.kind == "python":
            # A library unpacked again has new times but the same text.
            return ["python", platform.python_version(), [(file.name, file.size) for file in self.files]]
        files = [(file.name, file.size, file.changed) for file in self.files]
        # Tokens are used where they lie, so their place is part of what is prepared.
        return [self.kind, str(self.path.resolve()) if self.kind == "tokens" else "", files]


@dataclass(frozen=True)
class Piece:
    """A part of a source that can be read by itself."""

    kind: Kind
    """What its file holds."""
    path: str
    """Its file."""
    size: int
    """Bytes of it, as a measure of the work."""
    start: int = 0
    """Lines: the byte where the piece begins. Parquet: the number of the row group."""
    stop: int | None = None
    """Lines: the byte before which a line must begin; None for the whole file."""


def locate(spec: DataSpec, name: str, field: str = "data.source") -> Source:
    """Find the files of the source that is called `name`, and what they hold."""
    if name == STANDARD_LIBRARY:
        return _standard_library(field)
    path = Path(name).expanduser()
    if not path.exists():
        near = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        fix = suggestion(path.name, near)
        if not fix.startswith("Did you mean"):  # a list of everything that lies there would help nobody
            fix = f'Use an existing path, or "{STANDARD_LIBRARY}"'
        raise BadInput(field, name, rule="there is no such file or folder", fix=fix)
    kind = _kind(spec, path, field)
    if kind == "arrow" and path.is_dir():
        path = _dataset_folder(path, field)
    if path.is_file():
        files = [path]
    elif kind == "tokens" and is_corpus(path):
        files = []
    elif kind == "arrow":
        files = _dataset_files(path, field)
    else:
        files = [file for file in _walk(path, field) if _belongs(file, kind, spec)]
        if not files:
            wanted = [f"*{suffix}" for suffix, one in _SUFFIXES.items() if one == kind]
            rule = f"no file in it is called {' or '.join(wanted or [spec.pattern])}"
            fix = "Name a folder that holds some" if wanted else "Mend data.pattern, or name a folder that holds some"
            raise BadInput(field, name, rule=rule, fix=fix)
    return Source(kind, f"{path.name} ({kind})", field, path, tuple(_stat(file, path) for file in files))


def pieces(source: Source, text_field: str) -> list[Piece]:
    """The parts in which a source is read, in order; columns are checked here, before any work is begun."""
    result: list[Piece] = []
    for file in source.files:
        if source.kind == "jsonl" and not file.name.endswith(".gz"):
            for start in range(0, file.size, _LINES_PIECE):
                stop = min(start + _LINES_PIECE, file.size)
                result.append(Piece("jsonl", file.path, stop - start, start, stop))
        elif source.kind == "parquet":
            sizes = columns.row_groups(file.path, text_field, source.field)
            result += [Piece("parquet", file.path, size, number) for number, size in enumerate(sizes)]
        else:
            if source.kind == "arrow":
                columns.check_arrow(file.path, text_field, source.field)
            result.append(Piece(source.kind, file.path, file.size))
    return result


def _standard_library(field: str) -> Source:
    root = Path(sysconfig.get_path("stdlib"))
    # `_sysconfigdata` is written when Python is built and names that machine's paths.
    found = _walk(root, field, _NOT_LIBRARY)
    files = [file for file in found if file.suffix == ".py" and not file.name.startswith("_sysconfigdata")]
    if not files:
        raise BadInput(
            field,
            STANDARD_LIBRARY,
            rule=f"this Python has no source files in {root}",
            fix="Name a folder of text instead",
        )
    description = f"the standard library of Python {platform.python_version()}"
    return Source("python", description, field, root, tuple(_stat(file, root) for file in files))


def _walk(folder: Path, field: str, without: frozenset[str] = frozenset({"__pycache__"})) -> list[Path]:
    """Every file under a folder in a stable order, hidden ones and the folders called as in `without` left out."""
    result: list[Path] = []

    def refuse(error: OSError) -> None:
        raise BadInput(field, str(folder), rule=f"cannot be listed: {error}") from None

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in without]
        result += [Path(place, name) for name in names if not name.startswith(".")]
    if not result:
        raise BadInput(field, str(folder), rule="the folder is empty", fix="Name a folder with data in it")
    return sorted(result, key=lambda path: path.relative_to(folder).parts)


def _stat(path: Path, root: Path) -> Found:
    facts = path.stat()
    name = path.name if path == root else path.relative_to(root).as_posix()
    return Found(str(path), name, facts.st_size, facts.st_mtime_ns)


def _suffix_kind(path: Path) -> Kind | None:
    return next((kind for suffix, kind in _SUFFIXES.items() if path.name.lower().endswith(suffix)), None)


def _belongs(path: Path, kind: Kind, spec: DataSpec) -> bool:
    if kind == "text":
        return fnmatch.fnmatch(path.name, spec.pattern)
    # A .json file beside data is more often a description than data: it is taken for lines only on the run's word.
    return _suffix_kind(path) == kind or (spec.format == "jsonl" and path.suffix == ".json")


def _kind(spec: DataSpec, path: Path, field: str) -> Kind:
    """What a path holds: as the run says, or by the names of its files where they agree."""
    if spec.format != "auto":
        return _FORMATS.get(spec.format, "text")
    if path.is_file():
        return "jsonl" if path.suffix == ".json" else _suffix_kind(path) or "text"
    if is_corpus(path):
        return "tokens"
    if (path / "dataset_dict.json").is_file() or any(_is_dataset(one) for one in (path, path / "train")):
        return "arrow"
    files = [file for file in _walk(path, field) if not file.name.lower().endswith(_BESIDE_DATA)]
    if spec.pattern != "*":
        files = [file for file in files if fnmatch.fnmatch(file.name, spec.pattern)]
    kinds = {_suffix_kind(file): file for file in files}
    if len(kinds) > 1:
        names = " and ".join(sorted(file.name for file in kinds.values()))
        raise BadInput(
            field,
            str(path),
            rule=f"holds files of several kinds ({names})",
            fix="Say which are meant: data.format = text, jsonl, parquet, huggingface or tokens",
        )
    return next(iter(kinds), None) or "text"


def _is_dataset(folder: Path) -> bool:
    return (folder / "dataset_info.json").is_file() or (folder / "state.json").is_file()


def _dataset_folder(path: Path, field: str) -> Path:
    """The folder of one split: the path itself, or the `train` of a DatasetDict."""
    if _is_dataset(path) or not any(path.glob("*/state.json")):
        return path
    if (path / "train").is_dir():
        return path / "train"
    splits = sorted(entry.parent.name for entry in path.glob("*/state.json"))
    raise BadInput(
        field,
        str(path),
        rule=f"is a DatasetDict without a split called train; it has {', '.join(splits)}",
        fix=f"Name one of them, such as {path / splits[0]}",
    )


def _dataset_files(folder: Path, field: str) -> list[Path]:
    """The Arrow files of a dataset that `save_to_disk` wrote, in the order that its state gives."""
    state: Any = {}
    if (folder / "state.json").is_file():
        try:
            state = json.loads((folder / "state.json").read_bytes())
        except ValueError as error:
            raise BadInput(field, str(folder), rule=f"its state.json is not valid JSON: {error}") from None
    if state.get("_indices_data_files"):
        raise BadInput(
            field,
            str(folder),
            rule="was saved with a selection of rows that is not applied to its files",
            fix="Call flatten_indices() on the dataset and save it again",
        )
    named = [folder / entry["filename"] for entry in state.get("_data_files", ())]
    files = named or sorted(folder.glob("*.arrow"))
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise BadInput(
            field,
            str(folder),
            rule=f"{missing[0]} is missing from it" if missing else "holds no .arrow file",
            fix="Save the dataset again with save_to_disk",
        )
    return files


def total_size(parts: Sequence[Piece]) -> int:
    """Bytes to be read: the measure of progress."""
    return sum(part.size for part in parts)


def group(parts: Sequence[Piece], target: int) -> Iterator[list[Piece]]:
    """Neighbouring pieces in groups of about `target` bytes: each group becomes one shard, whoever prepares it."""
    current: list[Piece] = []
    size = 0
    for part in parts:
        current.append(part)
        size += part.size
        if size >= target:
            yield current
            current, size = [], 0
    if current:
        yield current
