"""`shardwright parity`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

from cyclopts import Parameter

from shardwright.cli.options import Json, Settings, run_file

DISAGREES = 1


def parity(
    run: Annotated[str, Parameter(help="A run.toml, or `first` for the default run.")],
    /,
    *layouts: Annotated[str, Parameter(help="Layouts to compare, such as dp=2,zero=3 or tp=2,microbatch=4.")],
    steps: Annotated[int, Parameter(help="Steps to compare.")] = 10,
    settings: Settings = (),
    json_output: Json = False,
) -> int:
    """Run the same steps under each layout and compare with one process.

    Uses local ranks and fp32, unless a layout names its precision. Ends with
    exit code 1 when any layout's losses or gradient norms disagree.
    """
    from shardwright.launch.parity import compare_layouts

    reference, comparisons = compare_layouts(run_file(run, settings), layouts, steps=steps)
    if json_output:
        print(json.dumps({"reference": reference, "layouts": [dataclasses.asdict(one) for one in comparisons]}))
    else:
        width = max((len(one.layout) for one in comparisons), default=0)
        print(f"against one process ({reference}), {steps} steps")
        for one in comparisons:
            print(
                f"{one.layout:<{width}}  loss {one.max_loss_difference:.1e}  gradient norm "
                f"{one.max_grad_norm_difference:.1e}  {'agrees' if one.agrees else 'DISAGREES'}"
            )
    return 0 if all(one.agrees for one in comparisons) else DISAGREES
