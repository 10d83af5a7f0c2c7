"""The one way in which Shardwright says that an input is wrong.

A message names the field, its value, the rule that it breaks and a way to mend it. The command line prints
it without a stack trace and ends with exit code 2; a Python caller catches `BadInput`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class BadInput(ValueError):
    """An input that cannot be used: which field, which value, which rule, which fix."""

    def __init__(
        self, field: str, value: Any = None, *, rule: str, fix: str | None = None, where: str | None = None
    ) -> None:
        self.field = field
        self.value = value
        self.rule = rule
        self.fix = fix
        self.where = where
        super().__init__(field, value, rule, fix, where)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions rebuild themselves from `args`; ours has keyword-only parts and must cross processes.
        return (_rebuild, (self.field, self.value, self.rule, self.fix, self.where))

    def __str__(self) -> str:
        subject = self.field if self.value is None else f"{self.field} = {show(self.value)}"
        message = f"{subject}: {self.rule}" if subject else self.rule
        if self.fix:
            message = f"{message.rstrip('.')}. {self.fix}"
        if not message.endswith("?"):
            message = f"{message.rstrip('.')}."
        return f"{self.where}: {message}" if self.where else message

    def at(self, where: str | None) -> BadInput:
        """The same complaint, with the place (`run.toml:12`, `--set …`) where the value was written."""
        return BadInput(self.field, self.value, rule=self.rule, fix=self.fix, where=self.where or where)

    def inside(self, prefix: str) -> BadInput:
        """The same complaint, its field named from further out: `tp` becomes `layout.tp`."""
        field = f"{prefix}.{self.field}" if self.field else prefix
        return BadInput(field, self.value, rule=self.rule, fix=self.fix, where=self.where)


def _rebuild(field: str, value: Any, rule: str, fix: str | None, where: str | None) -> BadInput:
    return BadInput(field, value, rule=rule, fix=fix, where=where)


def show(value: Any) -> str:
    """A value as it would be written in a run file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)


def suggestion(word: str, known: Iterable[str]) -> str:
    """`Did you mean X?`, or the list of what is known when nothing is near."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=2, cutoff=0.6)
    if near:
        return "Did you mean " + " or ".join(f'"{name}"' for name in near) + "?"
    return "Known: " + ", ".join(names)


def unknown(field: str, word: str, known: Iterable[str], what: str) -> BadInput:
    """The complaint about a name that is not in a list, with the nearest names that are."""
    return BadInput(field, word, rule=f"no such {what}", fix=suggestion(word, known))
