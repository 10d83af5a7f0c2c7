"""`shardwright train`."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, TextIO

from cyclopts import Parameter

from shardwright.cli.options import Json, Runs, Settings, run_file
from shardwright.cli.preparation import Preparation
from shardwright.cost.flops import MFU_DEFINITION
from shardwright.cost.memory import Memory, memory_of
from shardwright.spec import RunSpec, parameter_count

if TYPE_CHECKING:
    from shardwright.train.session import Outcome

FAILED, RESUMABLE = 1, 75


def train(
    run: Annotated[str | None, Parameter(help="A run.toml, or the directory of a run to go on with.")] = None,
    /,
    *,
    ranks: Annotated[int | None, Parameter(help="Processes on this machine; left out, what the layout says.")] = None,
    settings: Settings = (),
    fresh: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Refuse to go on with a run that is already there.")
    ] = False,
    runs: Runs = None,
    json_output: Json = False,
) -> int:
    """Train a model; with no RUN, a small one on this machine.

    The same command again goes on where it stopped. Ctrl-C and SIGTERM save
    first and end with exit code 75. Started by torchrun or srun, it joins
    their ranks.
    """
    from shardwright.launch import start

    human = sys.stderr if json_output else sys.stdout
    file = run_file(run, settings)
    outcome = start(
        file,
        ranks=ranks,
        fresh=fresh,
        runs=runs,
        human=human,
        preparing=Preparation(human),
        introduce=lambda run, device: introduce(run, device, human),
    )
    if os.environ.get("RANK", "0") == "0":  # joined ranks have one speaker
        conclude(file.for_ranks(outcome.ranks).resolve(outcome.ranks), outcome, human, is_default=run is None)
        if json_output:
            print(json.dumps(outcome.plain()))
    if outcome.stopped:
        return RESUMABLE
    return 0 if outcome.saved else FAILED


def introduce(run: RunSpec, device: str, human: TextIO) -> None:
    """Say what is about to be trained, where, and what it should cost."""
    batch = run.batch
    print(
        f"{run.name}: {run.model.name}, {parameter_count(run.model):,} parameters, on {run.data.source}\n"
        f"{run.layout.world} × {device}, layout {run.layout}\n"
        f"batch {batch.sequences} sequences = microbatch {run.layout.microbatch} × accumulation {batch.accumulation} × "
        f"data ranks {run.layout.dp}; × {run.data.sequence} = {run.tokens_per_step:,} tokens, {run.steps} steps\n"
        f"memory a rank, predicted: {describe_memory(memory_of(run, device))}\n",
        file=human,
        flush=True,
    )


def conclude(run: RunSpec, outcome: Outcome, human: TextIO, *, is_default: bool) -> None:
    """Say how it ended: losses, predicted beside measured, a sample, what to try next."""
    lines = [""]
    if outcome.stopped:
        lines.append(f"Stopped after step {outcome.step} of {run.steps}. The same command goes on from there.")
    if outcome.held_out_loss is not None:
        start = f"{outcome.first_held_out_loss:.3f} → " if outcome.first_held_out_loss is not None else ""
        lines.append(f"held-out loss     {start}{outcome.held_out_loss:.3f} nats a token")
    if outcome.tokens_per_second is not None:
        rate = outcome.tokens_per_second
        mfu = "n/a" if outcome.mfu is None else f"{outcome.mfu:.1%} ({MFU_DEFINITION})"
        lines.append(f"speed             {rate:,.0f} tokens/s global, MFU {mfu}")
        predicted = memory_of(run, outcome.device).total / 2**30
        measured = outcome.memory_gib - outcome.baseline_gib
        lines.append(
            f"memory a rank     predicted {predicted:.3f} GiB, measured {measured:.3f} GiB "
            f"({measured / predicted - 1:+.0%}), above {outcome.baseline_gib:.3f} GiB for Python and torch"
        )
    lines.append(f"run directory     {outcome.directory}")
    if not outcome.saved:
        lines.append("The last state could NOT be saved: see events.jsonl.")
    if outcome.sample is not None:
        lines += ["", "The model writes:", "", *(f"    {line}" for line in outcome.sample.splitlines())]
    if is_default and not outcome.stopped:
        lines += [
            "",
            "Next:",
            "  shardwright train --ranks 1 --set name=alone     the same run on one rank: the same losses",
            f"  shardwright show {outcome.directory:<32}what the run was",
            "  shardwright show llama3-70b                      a model too large for this machine",
        ]
    print("\n".join(lines), file=human, flush=True)


def describe_memory(memory: Memory) -> str:
    """`0.31 GiB: weights 0.01, …`."""
    terms = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")
    parts = ", ".join(f"{term} {getattr(memory, term) / 2**30:.3f}" for term in terms if getattr(memory, term))
    return f"{memory.total / 2**30:.3f} GiB: {parts}"
