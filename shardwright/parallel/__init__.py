"""Applies a Layout to a model: one file an axis, `apply.py` composes them.

Everything about ranks lives here: which process this is and how it reaches the others (`world.py`), how gradients are
brought together over data ranks (`data.py`), and in what order the pieces are put on a model (`apply.py`). The model
itself never learns of it.

The engine runs data parallelism today; `apply.engine_runs` is the one list of what it does not run yet, and says so by
name instead of falling back.

May touch: torch.distributed, and the floors `spec`, `observe`, `model`, `data`.

Start reading at `apply.py`.
"""

from shardwright.parallel.apply import apply, engine_runs
from shardwright.parallel.data import GradientSync
from shardwright.parallel.world import World

__all__ = ["GradientSync", "World", "apply", "engine_runs"]
