"""Named models, devices, links and clusters: data files beside this module, read once."""

from __future__ import annotations

import copy
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from shardwright.spec.errors import unknown


@cache
def _table(file: str) -> dict[str, Any]:
    text = resources.files("shardwright.spec").joinpath("data", file).read_text("utf-8")
    return tomllib.loads(text)


def model_names() -> list[str]:
    """Every model that has a name."""
    return list(_table("models.toml"))


def model_fields(name: str, field: str = "model") -> dict[str, Any]:
    """The fields of a named model, ready for `ModelSpec`."""
    models = _table("models.toml")
    if name not in models:
        raise unknown(field, name, models, "model in the catalogue")
    return {"name": name, **copy.deepcopy(models[name])}


def hardware(group: str) -> dict[str, dict[str, Any]]:
    """All `devices`, `links` or `clusters`, by name."""
    return _table("hardware.toml")[group]
