"""From a run file to its outcome, on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from shardwright.launch.environment import adopt_slurm, is_joined
from shardwright.observe import runs_folder, usable_cores
from shardwright.spec import BadInput, RunFile, RunSpec

if TYPE_CHECKING:
    from shardwright.data import Progress
    from shardwright.train.session import Outcome


def start(
    file: RunFile,
    *,
    ranks: int | None = None,
    fresh: bool = False,
    runs: str | None = None,
    human: TextIO | None = None,
    introduce: Callable[[RunSpec, str], None] | None = None,
    preparing: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Train a run to its end (or until it is asked to stop), from wherever it stands.

    Everything that can be checked is checked before any rank starts. `human` is where progress is shown, standard
    output unless told; `preparing` hears how far the data is, and `introduce` gets the resolved run and the kind of
    device just before the ranks start.
    """
    human = human or sys.stdout
    folder = runs_folder(runs)
    adopt_slurm()
    if is_joined():
        return _join(file, ranks=ranks, folder=folder, fresh=fresh, human=human)

    if ranks is not None and ranks < 1:
        raise BadInput("--ranks", ranks, rule="must be at least 1")
    if ranks is not None and "layout.dp" not in file.settings:
        file = file.for_ranks(ranks)
    run = file.resolve(ranks if ranks is not None else default_ranks(file.spec()))
    world = run.layout.world
    for line in (*core_warnings(world, run), *run.layout.batch_warnings(run.batch.accumulation or 1)):
        print(f"warning: {line}", file=sys.stderr)
    if world > 1 and "OMP_NUM_THREADS" not in os.environ:
        # Set before torch is loaded anywhere: its thread pools are sized once.
        os.environ["OMP_NUM_THREADS"] = str(max(1, usable_cores() // world))

    from shardwright.data import check_vocabulary, prepare, tokenizer_for
    from shardwright.guard.rank import open_directory, run_rank
    from shardwright.model.decoder import refuse_unknown_parts
    from shardwright.parallel import World, engine_runs
    from shardwright.parallel.world import choose_device
    from shardwright.train.stop import StopRequest

    engine_runs(run)
    refuse_unknown_parts(run.model)
    check_vocabulary(tokenizer_for(run.data), run.model)
    prepare(run.data, progress=preparing)
    with open_directory(file, run, runs=folder, fresh=fresh, world=world) as directory:
        if introduce is not None:
            introduce(run, choose_device(run.device, world - 1, world).type)
        if world > 1:
            from shardwright.guard.supervise import supervise

            name = "stdout" if human is sys.stdout else "stderr" if human is sys.stderr else "nowhere"
            return supervise(run, directory, ranks=world, threads=max(1, usable_cores() // world), human=name)
        with StopRequest() as stop, World.joined(run.device, run.guard.timeout) as alone:
            return run_rank(run, directory, alone, stop, human)


def _join(file: RunFile, *, ranks: int | None, folder: Path, fresh: bool, human: TextIO) -> Outcome:
    world = int(os.environ["WORLD_SIZE"])
    if ranks is not None and ranks != world:
        raise BadInput("--ranks", ranks, rule=f"the launcher started {world} ranks", fix="Leave --ranks out")
    from shardwright.guard.rank import join

    return join(file, runs=folder, fresh=fresh, human=human)


def default_ranks(run: RunSpec) -> int | None:
    """One rank a GPU where the layout leaves `dp` open and there are GPUs; otherwise what the layout says."""
    if run.layout.dp is not None or run.device == "cpu":
        return None
    from shardwright.guard.devices import gpu_count

    return gpu_count() or None


def core_warnings(world: int, run: RunSpec) -> list[str]:
    """What to say when ranks on a CPU are more than its cores."""
    cores = usable_cores()
    if world <= cores or run.device == "cuda":
        return []
    from shardwright.guard.devices import gpu_count

    if run.device == "auto" and gpu_count() >= world:
        return []
    return [f"{world} ranks on {cores} cores: they take turns, and the run is slower than with --ranks {cores}."]
