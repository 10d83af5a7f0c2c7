"""Shardwright: plan, rehearse, train and keep alive large-model runs, on two cores or 16,000 GPUs.

    import shardwright as sw

    outcome = sw.train(sw.RunSpec(model=sw.ModelSpec.named("tiny"), steps=50, layout=sw.Layout(dp=2, microbatch=8)))

The house has floors, each a folder that imports only from those before it: `spec` (what a run is), `cost`, `policy`,
`observe`, `model`, `data`, `parallel`, `checkpoint`, `train`, `guard`, `launch`, `cli`. Each folder's docstring says
what it is for and where to start reading. Importing `shardwright` loads the words alone; torch comes with the first
call that needs it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from shardwright.api import train
from shardwright.spec import (
    BadInput,
    BatchSpec,
    CheckpointSpec,
    Cluster,
    DataSpec,
    Device,
    Experts,
    GuardSpec,
    Ingredient,
    LatentAttention,
    Layout,
    Link,
    ModelSpec,
    ObserveSpec,
    OptimizerSpec,
    Rope,
    RunFile,
    RunSpec,
    ScheduleSpec,
    active_parameter_count,
    parameter_count,
    parameters,
    write_run,
)
from shardwright.version import __version__


class _Floor(ModuleType):
    """A floor that is also a verb: `shardwright.train` is a folder, and `sw.train(run)` trains."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _VERBS[self.__name__](*arguments, **options)


class _House(ModuleType):
    """Importing a folder binds its name here, over the function of the same name; this keeps it callable."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and value.__name__ in _VERBS:
            value.__class__ = _Floor
        super().__setattr__(name, value)


_VERBS = {"shardwright.train": train}
sys.modules[__name__].__class__ = _House

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
    "__version__",
    "active_parameter_count",
    "parameter_count",
    "parameters",
    "train",
    "write_run",
]
