"""Our training loop beside bare PyTorch loops of the same model, in one run.

    python benchmarks/loop.py                     # one rank and two, on this machine's processor
    python benchmarks/loop.py --device cuda       # one rank on a GPU, in bf16

The bare loop is what one writes by hand for one process: plain batches, `cross_entropy` on full logits, clipping, fused
AdamW; no records, no held-out split, no signals. The two take turns, a few steps each, so that neither has the warmer
machine; the figure is the ratio of their median step times. Over two ranks the bare loop is wrapped in
DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from shardwright.data import GlobalBatches, prepare
from shardwright.model import build, materialise
from shardwright.observe import Recorder, RunDirectory, progress_for
from shardwright.parallel import World
from shardwright.spec import (
    BatchSpec,
    DataSpec,
    Layout,
    ModelSpec,
    ObserveSpec,
    RunSpec,
    parameter_count,
    write_run,
)
from shardwright.train.loop import batches_from, step
from shardwright.train.meter import Meter
from shardwright.train.recipe import recipe_of
from shardwright.train.session import Session
from shardwright.train.stop import StopRequest

MODELS = {
    "cpu": (ModelSpec.named("small"), 128, 8),
    "cuda": (replace(ModelSpec.named("llama3.2-1b"), layers=8), 4096, 2),
}


class Ours:
    """One step of `shardwright.train.loop`, records and all."""

    def __init__(self, run: RunSpec, world: World, folder: Path) -> None:
        directory = RunDirectory.open(folder, run, write_run(run)) if world.is_main else RunDirectory(folder / run.name)
        self.session = Session.open(run, directory, prepare(run.data), world, StopRequest())
        if world.is_main:
            self.session.recorder = Recorder(directory)
            stream = (folder / "progress.txt").open("w")
            self.session.progress = progress_for(stream, total_steps=run.steps, start_step=0, log_seconds=5)
        self.meter, self.batches = Meter(run, world, self.session.mesh), batches_from(self.session)

    def step(self) -> None:
        for record in step(self.session, self.meter, self.batches):
            self.session.note(record)


class Bare:
    """The loop that one writes by hand."""

    def __init__(self, run: RunSpec, world: World) -> None:
        recipe = recipe_of(run.layout)
        self.model = build(run.model)
        materialise(self.model, seed=run.seed, device=world.device, dtype=recipe.weights)
        self.model.compute_dtype = recipe.compute
        self.model.forward = self.loss  # type: ignore[method-assign]
        self.wrapped = (
            self.model if world.size == 1 else DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        )
        self.masters = (
            [p.detach().float() for p in self.model.parameters()] if recipe.master else list(self.model.parameters())
        )
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.batches = GlobalBatches(
            prepare(run.data), seed=run.seed, sequence=run.data.sequence, sequences=run.batch.sequences or 1,
            document_mask=False,
        )  # fmt: skip
        self.world, self.steps = world, 0

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.model.hidden(inputs)
        logits = F.linear(hidden, self.model.head_weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def step(self) -> None:
        batch = self.batches.read(self.steps, self.world.rank, self.world.size).to(self.world.device)
        loss = self.wrapped(batch.inputs, batch.targets)
        loss.backward()
        parameters = list(self.model.parameters())
        if self.masters[0] is not parameters[0]:
            for master, parameter in zip(self.masters, parameters):
                master.grad = parameter.grad.float()  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        if self.masters[0] is not parameters[0]:
            torch._foreach_copy_([p.data for p in parameters], self.masters)
            self.optimizer.zero_grad()
        self.model.zero_grad()
        loss.item()
        self.steps += 1


def measure(rank: int, size: int, port: int, device: str, rounds: int, folder: str) -> dict[str, Any]:
    """Median step seconds of both loops, taking turns."""
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(1)
    model, sequence, microbatch = MODELS[device]
    run = RunSpec(
        model=model,
        name=f"ranks-{size}",
        steps=10_000,
        device=device,  # type: ignore[arg-type]
        data=DataSpec(sequence=sequence, document_mask=False),
        batch=BatchSpec(sequences=microbatch * size),
        layout=Layout(dp=size, microbatch=microbatch, precision="bf16" if device == "cuda" else "fp32"),
        observe=ObserveSpec(evaluate_sequences=0),
    ).resolve(size)
    with World.joined(device, 300) as world:
        if world.is_main:
            prepare(run.data)
        if size > 1:
            dist.barrier()
        loops = {"ours": Ours(run, world, Path(folder)), "bare": Bare(run, world)}
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for turn in range(rounds):
            for name, loop in loops.items():
                for _ in range(4):
                    if device == "cuda":
                        torch.cuda.synchronize()
                    began = perf_counter()
                    loop.step()
                    if device == "cuda":
                        torch.cuda.synchronize()
                    if turn:  # the first turn warms up
                        seconds[name].append(perf_counter() - began)
        tokens = run.tokens_per_step
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        return {
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "ranks": size,
            "model": f"{parameter_count(model):,} parameters, {sequence} tokens a sequence",
            "ours_tokens_per_second": tokens / medians["ours"],
            "bare_tokens_per_second": tokens / medians["bare"],
            "ratio": medians["bare"] / medians["ours"],
        }


def spawned(rank: int, *arguments: Any) -> None:
    """One of two ranks; the first writes its figures down."""
    *rest, result = arguments
    figures = measure(rank, *rest)
    if rank == 0:
        Path(result).write_text(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        figures.append(measure(0, 1, 0, options.device, options.rounds, folder))
        if options.device == "cpu":
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                port = listener.getsockname()[1]
            result = f"{folder}/result.json"
            mp.spawn(spawned, (2, port, options.device, options.rounds, folder, result), nprocs=2)
            figures.append(json.loads(Path(result).read_text()))
    if options.json:
        print(json.dumps(figures))
        return
    for row in figures:
        print(
            f"{row['device']}, {row['ranks']} rank(s), {row['model']}: ours {row['ours_tokens_per_second']:,.0f}, "
            f"bare {row['bare_tokens_per_second']:,.0f} tokens/s, ratio {row['ratio']:.3f}"
        )


if __name__ == "__main__":
    main()
