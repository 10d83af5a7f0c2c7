"""One rank of a run, however it was started: alone, by our supervisor (`python -m shardwright.guard.rank`), by torchrun
or by srun."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import torch
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from shardwright.data import check_vocabulary, prepare, tokenizer_for
from shardwright.observe import Recorder, RunDirectory, TensorBoard, progress_for, write_manifest
from shardwright.parallel import World
from shardwright.spec import BadInput, RunFile, RunSpec
from shardwright.train.loop import train
from shardwright.train.session import Outcome, Session, check_disk
from shardwright.train.stop import StopRequest

LINUX_PARENT_DEATH_SIGNAL = 1


def run_rank(run: RunSpec, directory: RunDirectory, world: World, stop: StopRequest, human: TextIO) -> Outcome:
    """Train this rank's part of a run whose directory and data are ready; `human` is where rank 0 speaks."""
    data = prepare(run.data)
    with ExitStack() as stack:
        session = Session.open(run, directory, data, world, stop)
        stack.callback(session.engine.gradients.close)
        if world.is_main:
            sinks = [TensorBoard(directory.path / "tensorboard")] if run.observe.tensorboard else []
            session.recorder = stack.enter_context(Recorder(directory, sinks))
            session.recorder.rewind(session.step)
            session.progress = progress_for(
                human, total_steps=run.steps, start_step=session.step, log_seconds=run.observe.log_seconds
            )
            stack.callback(session.progress.close)
            attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
            if attempt:
                session.event("restart", f"start {attempt + 1} of the ranks, from step {session.step}")
            elif session.step:
                session.event("resume", f"resumed at step {session.step}")
            else:
                session.event("start", f"{world.size} ranks on {world.device.type}")
        outcome = train(session)
        if outcome.stopped:
            session.event("stop", f"stopped after step {outcome.step} as asked; the same command goes on")
        return outcome


def join(file: RunFile, *, runs: Path, fresh: bool, human: TextIO) -> Outcome:
    """Run as a rank that torchrun or srun started: the environment says who we are."""
    run = file.resolve(int(os.environ["WORLD_SIZE"]))
    with StopRequest() as stop, World.joined(run.device, run.guard.timeout) as world:
        directory = None
        if world.local_rank == 0 or world.is_main:
            problem = _attempt(lambda: check_vocabulary(tokenizer_for(run.data), run.model), lambda: prepare(run.data))
        else:
            problem = None
        if world.is_main and problem is None:
            try:
                directory = open_directory(file, run, runs=runs, fresh=fresh, world=world.size)
            except BadInput as error:
                problem = error
        said = world.agree(None if problem is None else str(problem))
        if said is not None:
            raise problem or BadInput("", rule=f"rank 0: {said}")
        with directory or RunDirectory.at(runs / run.name) as opened, log_to(opened, world):
            return run_rank(run, opened, world, stop, human)


def _attempt(*actions: object) -> BadInput | None:
    for action in actions:
        try:
            action()  # type: ignore[operator]
        except BadInput as error:
            return error
    return None


def open_directory(file: RunFile, run: RunSpec, *, runs: Path, fresh: bool, world: int) -> RunDirectory:
    """The run's directory, made or found, with this start written into its manifest."""
    check_disk(run, runs / run.name)
    directory = RunDirectory.open(runs, run, file.resolved(run), fresh=fresh)
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    write_manifest(directory, run, data_fingerprint=prepare(run.data).fingerprint, world=world, devices=gpus)
    return directory


@contextmanager
def log_to(directory: RunDirectory, world: World) -> Iterator[None]:
    """Send what this rank prints to its log, down to what C++ prints; rank 0 prints where it was started."""
    with directory.log_file(world.rank).open("a", buffering=1) as log:
        print(f"rank {world.rank} of {world.size}, pid {os.getpid()}, device {world.device}", file=log)
        if world.is_main:
            yield
            return
        sys.stdout.flush()
        kept = {number: os.dup(number) for number in (1, 2)}
        try:
            for number in kept:
                os.dup2(log.fileno(), number)
            yield
        finally:
            sys.stdout.flush()
            for number, before in kept.items():
                os.dup2(before, number)
                os.close(before)


def speaker(name: str) -> TextIO:
    """Where rank 0 shows progress: `stdout`, `stderr` or `nowhere`."""
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}
    return streams[name] if name in streams else Path(os.devnull).open("w")


def die_with_parent() -> None:
    """Ask Linux to end this process when its supervisor is killed: an orphan would hold its GPU for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(LINUX_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def main() -> None:
    """`python -m shardwright.guard.rank DIRECTORY OUTCOME stdout|stderr|nowhere`: what the supervisor starts.

    An error goes to this rank's log in full and to the supervisor in brief: the terminal shows one message, of the rank
    that failed first.
    """
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the supervisor too, which passes it on once
    directory, outcome_file, human = RunDirectory.at(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    errors = get_error_handler()
    errors.initialize()
    try:
        run = directory.stored_run()
        with StopRequest(hear_interrupt=False) as stop, World.joined(run.device, run.guard.timeout) as world:
            with log_to(directory, world):
                outcome = run_rank(run, directory, world, stop, speaker(human))
            if world.is_main:
                outcome_file.write_text(json.dumps(outcome.plain()), "utf-8")
    except Exception as error:
        with directory.log_file(int(os.environ["RANK"])).open("a") as log:
            traceback.print_exc(file=log)
        errors.record_exception(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
