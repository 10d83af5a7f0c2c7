"""A folder imports only from folders below it, and the light folders never import torch.

Every import statement counts: absolute or relative, at the top of a module, inside a function or under TYPE_CHECKING.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "shardwright"

# fmt: off
FLOORS = [
    "spec", "cost", "plan", "policy", "simulate", "observe", "model", "data",
    "parallel", "checkpoint", "train", "rehearse", "guard", "launch", "board", "cli",
]
# fmt: on
WITHOUT_TORCH = {"spec", "cost", "plan", "policy", "simulate", "observe", "launch", "board"}
PLAIN_MODULES = {"version"}  # of the package itself, beneath every floor


def imported(tree: ast.AST, module: list[str], package: str) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of everything that a module imports; `module` is its own package, as a list."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = [*module[: len(module) - node.level + 1]] if node.level else []
            if node.module:
                base += node.module.split(".")
            if base == [package]:  # `from shardwright import plan` names a floor, too
                for alias in node.names:
                    yield node.lineno, f"{package}.{alias.name}"
            else:
                yield node.lineno, ".".join(base)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def violations(package: Path) -> list[str]:
    """One sentence for each import that breaks a rule."""
    found = []
    for file in sorted(package.rglob("*.py")):
        inside = file.relative_to(package)
        floor = inside.parts[0] if len(inside.parts) > 1 else inside.stem
        if len(inside.parts) > 1 and floor not in FLOORS:
            found.append(f"{inside}: {floor} is not a floor")
            continue
        tree = ast.parse(file.read_text("utf-8"), str(file))
        for line, name in imported(tree, [package.name, *inside.parts[:-1]], package.name):
            top, *rest = name.split(".")
            if top == "torch" and floor in WITHOUT_TORCH:
                found.append(f"{inside}:{line}: {floor} imports {name}")
            if top != package.name or not rest or rest[0] == floor:
                continue
            if rest[0] not in FLOORS:
                if not (package / f"{rest[0]}.py").exists() and (package / rest[0]).exists():
                    found.append(f"{inside}:{line}: {name} is on no floor")
            elif floor in PLAIN_MODULES or (floor in FLOORS and FLOORS.index(rest[0]) > FLOORS.index(floor)):
                found.append(f"{inside}:{line}: {floor} imports {name}")
    return found


def test_no_floor_imports_from_above():
    assert len(list(PACKAGE.rglob("*.py"))) > 10
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("spec/a.py", "from shardwright.plan import search", "spec/a.py:1: spec imports shardwright.plan"),
        ("spec/a.py", "import shardwright.cost.memory", "spec/a.py:1: spec imports shardwright.cost.memory"),
        ("spec/a.py", "from shardwright import plan", "spec/a.py:1: spec imports shardwright.plan"),
        ("spec/a.py", "from ..plan import search", "spec/a.py:1: spec imports shardwright.plan"),
        ("spec/a.py", "from .. import plan", "spec/a.py:1: spec imports shardwright.plan"),
        ("model/deep/a.py", "from ...train import loop", "model/deep/a.py:1: model imports shardwright.train"),
        (
            "plan/a.py",
            "def f():\n    from shardwright.train import loop",
            "plan/a.py:2: plan imports shardwright.train",
        ),
        ("cost/__init__.py", "import torch", "cost/__init__.py:1: cost imports torch"),
        ("board/a.py", "def f():\n    import torch.nn as nn", "board/a.py:2: board imports torch.nn"),
        ("launch/a.py", "if True:\n    from torch import nn", "launch/a.py:2: launch imports torch"),
        ("policy/a.py", "import importlib\nimportlib.import_module('torch')", "policy/a.py:2: policy imports torch"),
        ("version.py", "from shardwright.spec import Layout", "version.py:1: version imports shardwright.spec"),
        ("misc/a.py", "", "misc/a.py: misc is not a floor"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, text, expected):
    planted = tmp_path / "shardwright" / file
    planted.parent.mkdir(parents=True)
    planted.write_text(text)
    assert violations(tmp_path / "shardwright") == [expected]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "plan/a.py",
            "from shardwright.spec import Layout\nfrom ..cost import memory\nfrom . import b\nfrom .b import c",
        ),
        ("model/a.py", "import torch\nfrom shardwright.model.b import c"),
        ("cli/a.py", "def f():\n    from shardwright.train import loop\nfrom shardwright.version import __version__"),
        ("spec/a.py", "import torchvision_is_not_torch"),
    ],
)
def test_what_is_allowed_is_allowed(tmp_path, file, text):
    planted = tmp_path / "shardwright" / file
    planted.parent.mkdir(parents=True)
    planted.write_text(text)
    assert violations(tmp_path / "shardwright") == []
