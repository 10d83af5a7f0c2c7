"""What a layout *costs*: parameters, memory, FLOPs, communication, schedule, step time.

Given a model, a cluster and a `Layout`, this floor answers with numbers and with the reason for each: how full the
fullest rank is, how long a step takes and where the time goes, how many bytes cross which wire. It decides nothing;
the planner above it asks it about thousands of layouts, the engine compares its answers with what it measures, and
both must read the same number under the same name.

May touch: the standard library and `shardwright.spec`. Never torch, a device or the network: a price is a function
of descriptions, so that a laptop can price sixteen thousand GPUs in a fraction of a second.

Start reading at `flops.py`: the work that a token costs, and the one definition of MFU that every number in this
house follows.
"""

from shardwright.cost.flops import MFU_DEFINITION, mfu, model_flops_per_token
from shardwright.cost.stages import balanced_stages, held_stages

__all__ = ["MFU_DEFINITION", "balanced_stages", "held_stages", "mfu", "model_flops_per_token"]
