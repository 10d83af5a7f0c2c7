"""Applies a Layout to a model: one file an axis, `apply.py` composes them.

Everything about ranks lives here: which process this is and how it reaches the others (`world.py`), the grid of all
ranks with its named axes (`mesh.py`), gradients over data ranks that hold the whole model (`data.py`) or shards of it
(`sharded.py`), matrices split over tensor ranks (`tensor.py`; the loss over a split vocabulary is in `vocabulary.py`),
stages of a pipeline (`pipeline.py`), and in what order all this is put on a model (`apply.py`). `engine.py` is what a
training loop sees of it; `shards.py` goes between a parameter and the part of it that a rank holds. The model itself
never learns of any of it.

`apply.engine_runs` is the one list of what can be planned but not run yet, and says so by name instead of falling back.

May touch: torch.distributed, and the floors `spec`, `observe`, `model`, `data`.

Start reading at `apply.py`.
"""

from shardwright.parallel.apply import apply, engine_runs
from shardwright.parallel.data import GradientSync
from shardwright.parallel.engine import Engine
from shardwright.parallel.mesh import Mesh
from shardwright.parallel.sharded import ShardedGradients
from shardwright.parallel.world import World

__all__ = ["Engine", "GradientSync", "Mesh", "ShardedGradients", "World", "apply", "engine_runs"]
