"""Run files: TOML in, with the line of every mistake; TOML out, with the author's comments kept.

    name = "first"
    [model]
    preset = "tiny"            # or hidden, layers, heads, …, or hf = "path/"
    [layout]
    dp = 2

`--set layout.dp=4` changes a value before anything is checked. A section given as text (`layout = "dp=2,tp=2"`,
`model = "tiny"`) is its short form.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwright.spec.errors import BadInput, suggestion
from shardwright.spec.fields import build, convert, field_types, plain
from shardwright.spec.layout import Layout
from shardwright.spec.model import ModelSpec
from shardwright.spec.run import RunSpec


@dataclass(frozen=True)
class RunFile:
    """A run as it was written: the text, where it stood, and what was set over it."""

    text: str = ""
    """The TOML itself."""
    path: str | None = None
    """Its file, for messages."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values set over it, by dotted path; None takes a value away."""

    @classmethod
    def read(cls, path: str | Path, settings: Iterable[str] = ()) -> RunFile:
        """Read a file; `settings` are `a.b=value` as they stand on a command line."""
        try:
            text = Path(path).read_text("utf-8")
        except FileNotFoundError:
            raise BadInput("RUN", str(path), rule="there is no such file", fix="Name a run.toml") from None
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput("RUN", str(path), rule=f"cannot be read: {error}") from None
        return cls(text, str(path), parse_settings(settings))

    def spec(self) -> RunSpec:
        """The run that it describes, checked."""
        try:
            values = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            raise BadInput(self.path or "RUN", rule=f"is not valid TOML: {error}") from None
        for path, value in self.settings.items():
            _put(values, path, value)
        try:
            return from_mapping(values)
        except BadInput as error:
            raise error.at(self.where(error.field)) from None

    def resolve(self, world: int | None = None) -> RunSpec:
        """The run with every derived number filled in (`RunSpec.resolve`); a mistake is named with its line."""
        run = self.spec()
        try:
            return run.resolve(world)
        except BadInput as error:
            raise error.at(self.where(error.field)) from None

    def for_ranks(self, ranks: int) -> RunFile:
        """The same run on this many ranks: they share the global batch, whatever the file says of `dp`."""
        run = self.spec()
        changes: dict[str, Any] = {"layout.dp": ranks // run.layout.model_ranks or None}
        if run.batch.sequences is not None:
            changes["batch.accumulation"] = None
        return dataclasses.replace(self, settings={**self.settings, **changes})

    def where(self, path: str) -> str | None:
        """`run.toml:12` or `--set a.b`: where the value of a dotted path was written."""
        candidates = _prefixes(path)
        for candidate in candidates:  # a setting replaces what the file says of it and of all beneath it
            if candidate in self.settings:
                return f"--set {candidate}"
        beneath = [name for name in self.settings if name.startswith(f"{candidates[0]}.")]
        if beneath:
            return f"--set {beneath[0]}"
        for candidate in candidates:
            line = _line_of(self.text, candidate)
            if line is not None:
                return f"{self.path or 'run'}:{line}"
        return self.path

    def resolved(self, run: RunSpec) -> str:
        """The file again, comments and order kept, with every value of the resolved run in it and no other.

        Neither `hf` (the folder may not be there later) nor a `preset` that would add to the run's model is kept.
        """
        import tomlkit

        document = tomlkit.parse(self.text)
        for path, value in self.settings.items():
            _put(document, path, value)
        values = plain(run)
        model = document.get("model")
        if isinstance(model, Mapping) and "preset" in model:
            named = {"preset": str(model["preset"]), **values["model"]}
            if ModelSpec.from_fields(named) == run.model:
                values["model"] = named
        _fill(document, values)
        return tomlkit.dumps(document)


def write_run(run: RunSpec) -> str:
    """A run built in Python, as the text of a run file."""
    return RunFile().resolved(run)


def from_mapping(values: Mapping[str, Any]) -> RunSpec:
    """A `RunSpec` from nested plain values, as TOML gives them."""
    hints = field_types(RunSpec)
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            raise BadInput(key, rule="unknown key", fix=suggestion(key, hints))
        if key == "model":
            table = {"preset": value} if isinstance(value, str) else value
            if not isinstance(table, Mapping):
                raise BadInput(key, value, rule="must be a table or the name of a preset")
            arguments[key] = ModelSpec.from_fields(table)
        elif key == "layout":
            arguments[key] = layout_from(value)
        else:
            arguments[key] = convert(hints[key], value, key)
    if "model" not in arguments:
        raise BadInput("model", rule="is required and missing", fix='Add [model] with preset = "tiny"')
    return RunSpec(**arguments)


def layout_from(value: Any) -> Layout:
    """A layout from its text or its table; `state = 16` may be written as a number."""
    if isinstance(value, str):
        return Layout.parse(value)
    if not isinstance(value, Mapping):
        raise BadInput("layout", value, rule='must be a table or text like "dp=2,tp=4"')
    table = dict(value)
    if isinstance(table.get("state"), int):
        table["state"] = str(table["state"])
    return build(Layout, table, "layout")


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`["optimizer.learning_rate=3e-4"]` → values by dotted path; what is not TOML is text."""
    parsed: dict[str, Any] = {}
    for setting in settings:
        path, equals, raw = setting.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.\w+)*", path.strip()):
            raise BadInput("--set", setting, rule="must be name=value", fix="Write --set layout.dp=2")
        try:
            value = tomllib.loads(f"value = {raw}")["value"]
        except tomllib.TOMLDecodeError:
            value = raw.strip()
        parsed[path.strip()] = value
    return parsed


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted path in nested tables; a section in its short form becomes a table first."""
    *tables, last = path.split(".")
    for depth, name in enumerate(tables):
        inner = values.setdefault(name, {})
        if isinstance(inner, str) and depth == 0 and name in ("model", "layout"):
            inner = {"preset": str(inner)} if name == "model" else Layout.values(inner)
            values[name] = inner
        if not isinstance(inner, dict):
            raise BadInput("--set", path, rule=f'"{name}" is a value, not a table')
        values = values[name]
    if value is None:
        values.pop(last, None)
    else:
        values[last] = value


def _prefixes(path: str) -> list[str]:
    """`a.b[1].c` → itself, then `a.b[1]`, `a.b` and `a`; remarks after a colon left out."""
    whole = path.split(":")[0]
    ends = [match.start() for match in re.finditer(r"[.\[]", whole)]
    return [whole, *(whole[:end] for end in reversed(ends))]


def _line_of(text: str, path: str) -> int | None:
    """The line on which a dotted path is written: TOML parsers do not keep it, a scan for its key finds it."""
    *tables, last = path.split(".")
    header = ""
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        table = re.match(r"\s*\[(\[?)\s*([\w.\-]+)\s*\]\]?", line)
        if table:
            array, header = table.groups()
            if array:
                seen[header] = seen.get(header, -1) + 1
                header = f"{header}[{seen[header]}]"
            if path in (header, table.group(2)):
                return number
            continue
        key = re.match(r"\s*([\w.\-]+)\s*=", line)
        if key:
            full = f"{header}.{key.group(1)}" if header else key.group(1)
            if full == path or (full == ".".join(tables) and re.search(rf"\b{last}\s*=", line)):
                return number
    return None


def _fill(table: Any, values: Mapping[str, Any]) -> None:
    """Make a tomlkit table say these nested values and no others; keys that already say the same stay untouched."""
    for key in [key for key in table if key not in values]:
        del table[key]
    for key, value in values.items():
        present = table.get(key)
        if isinstance(value, Mapping) and isinstance(present, Mapping):
            _fill(present, value)
        elif _tables(value) and _tables(present) and len(value) == len(present):
            for item, inner in zip(present, value):
                _fill(item, inner)
        elif present != value:
            table[key] = value
            if isinstance(value, Mapping) and present is not None and present.trivia.comment:
                table[key].comment(present.trivia.comment)  # of a short form, which becomes a table


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)
