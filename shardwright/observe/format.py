"""Numbers for people: sizes in GiB, durations in words, rates with separators."""

from __future__ import annotations

GIBIBYTE = 1024**3


def gib(size: float) -> str:
    """Bytes as `0.61 GiB`."""
    return f"{size / GIBIBYTE:.2f} GiB"


def duration(seconds: float) -> str:
    """Seconds as `0.4s`, `12s`, `1m 12s`, `3h 05m` or `2d 04h`: two units at most."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def percent(fraction: float | None) -> str:
    """A fraction as `41.3%`, and `n/a` where it is unknown."""
    return "n/a" if fraction is None else f"{100 * fraction:.1f}%"
