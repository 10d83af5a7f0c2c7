"""The words: what a run *is*.

`ModelSpec` describes a model, `Cluster` the machines, `Layout` how a run is spread over them, `RunSpec` the whole run.
They are frozen dataclasses: made once, checked when made, never changed. Every other floor of the house speaks in
them, and nothing about parallelism passes between floors except a `Layout`.

May touch: the standard library, and tomlkit for writing. Never torch, numpy or the network: `shardwright show` and
the planner start in a fraction of a second because of it.

Start reading at `run.py` (what a run file may say), then `layout.py` (the one value that everything speaks) and
`model.py` with `parameters.py` (every weight that follows from a description). `toml.py` reads and writes run files,
`cluster.py` and `catalogue.py` know hardware, `huggingface.py` reads other people's configurations, `fields.py`
turns mappings into dataclasses, and `errors.py` holds `BadInput`, the one way to say that an input is wrong.
"""

from shardwright.spec.cluster import Cluster, Device, Link
from shardwright.spec.errors import BadInput
from shardwright.spec.layout import Layout
from shardwright.spec.model import Experts, LatentAttention, ModelSpec, Rope
from shardwright.spec.parameters import active_parameter_count, parameter_count, parameters
from shardwright.spec.run import (
    BatchSpec,
    CheckpointSpec,
    DataSpec,
    GuardSpec,
    Ingredient,
    ObserveSpec,
    OptimizerSpec,
    RunSpec,
    ScheduleSpec,
)
from shardwright.spec.toml import RunFile, write_run

__all__ = [
    "BadInput",
    "BatchSpec",
    "CheckpointSpec",
    "Cluster",
    "DataSpec",
    "Device",
    "Experts",
    "GuardSpec",
    "Ingredient",
    "LatentAttention",
    "Layout",
    "Link",
    "ModelSpec",
    "ObserveSpec",
    "OptimizerSpec",
    "Rope",
    "RunFile",
    "RunSpec",
    "ScheduleSpec",
    "active_parameter_count",
    "parameter_count",
    "parameters",
    "write_run",
]
