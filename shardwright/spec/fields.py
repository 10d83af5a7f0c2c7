"""Mappings (from TOML, JSON or flags) into frozen dataclasses, with every mistake named.

pydantic and msgspec reject unknown keys but suggest nothing, and cannot say on which line a value stands;
sixty lines over `dataclasses` do both and import in no time.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from shardwright.spec.errors import BadInput, suggestion

T = TypeVar("T")


_types: dict[type, dict[str, Any]] = {}


def field_types(cls: type) -> dict[str, Any]:
    """The resolved type of each field of a dataclass, in order."""
    if cls not in _types:
        hints = typing.get_type_hints(cls)
        _types[cls] = {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}
    return _types[cls]


def build(cls: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """A dataclass from a mapping: unknown keys refused with a suggestion, every value checked against its type."""
    hints = field_types(cls)
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        if key not in hints:
            raise BadInput(here, rule="unknown key", fix=suggestion(key, hints))
        arguments[key] = convert(hints[key], value, here)
    required = [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.init
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in arguments
    ]
    if required:
        here = f"{path}.{required[0]}" if path else required[0]
        raise BadInput(here, rule="is required and missing", fix=f"Add {required[0]} = …")
    try:
        return cls(**arguments)
    except BadInput as error:
        raise (error.inside(path) if path else error) from None


def convert(kind: Any, value: Any, path: str) -> Any:
    """One value as the type that its field declares; whole floats are taken as integers, nothing else is guessed."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(kind) if option is not type(None)]
        if value is None and len(options) < len(get_args(kind)):
            return None
        return convert(options[0], value, path)
    if origin is Literal:
        choices = get_args(kind)
        if value in choices and type(value) in {type(choice) for choice in choices}:
            return value
        raise BadInput(path, value, rule="not one of the choices", fix=suggestion(str(value), map(str, choices)))
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise BadInput(path, value, rule="must be a list", fix="Write it as [a, b]")
        inner = get_args(kind)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(convert(inner[0], item, f"{path}[{i}]") for i, item in enumerate(value))
        if len(inner) != len(value):
            raise BadInput(path, list(value), rule=f"must have {len(inner)} values, has {len(value)}")
        return tuple(convert(one, item, f"{path}[{i}]") for i, (one, item) in enumerate(zip(inner, value)))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise BadInput(path, value, rule="must be a table", fix=f"Write its fields under [{path}]")
        return build(kind, value, path)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and not isinstance(value, bool):
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, str):
        return str(value)
    name = {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes"}[kind]
    raise BadInput(path, value, rule=f"must be {name}, not {_name_of(value)}")


def _name_of(value: Any) -> str:
    names = {
        bool: "true or false",
        int: "a number",
        float: "a decimal number",
        str: "text",
        list: "a list",
        dict: "a table",
    }
    return names.get(type(value), type(value).__name__)


def plain(value: Any) -> Any:
    """A dataclass as nested plain values, fields that are None left out: what TOML and JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.init)
        return {name: plain(item) for name, item in pairs if item is not None}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def require(condition: bool, field: str, value: Any, rule: str, fix: str | None = None) -> None:
    """Raise `BadInput` unless the condition holds."""
    if not condition:
        raise BadInput(field, value, rule=rule, fix=fix)
