"""What a run tells about itself: the fields, the sinks, and metrics that a resumed run continues."""

import json
import math
import subprocess
import sys

from shardwright.observe import Recorder, TensorBoard, read_records

STEP = {
    "tokens": 4096,
    "loss": 2.5,
    "grad_norm": 0.8,
    "learning_rate": 1e-3,
    "step_seconds": 0.5,
    "data_seconds": 0.01,
    "tokens_per_second": 8192.0,
    "tokens_per_second_per_gpu": 4096.0,
    "mfu": None,
    "memory_gib": 0.6,
}


def test_fields_are_those_of_the_design(directory):
    with Recorder(directory) as recorder:
        returned = recorder.metrics(step=1, **STEP, ranks={"step_seconds": (0.5, 0.4)})
        recorder.metrics(step=2, **{**STEP, "loss": math.nan})
        recorder.event("save", step=2, detail={"seconds": 0.1})
        recorder.event("failure", step=2, rank=3, detail="out of memory")
    metrics = list(read_records(directory.metrics))
    assert list(metrics[0]) == ["step", *STEP, "ranks"]
    assert metrics[0] == {"step": 1, **STEP, "ranks": {"step_seconds": [0.5, 0.4]}} == returned
    assert metrics[1]["loss"] is None
    assert list(metrics[1]) == ["step", *STEP]
    events = list(read_records(directory.events))
    assert list(events[0]) == ["time", "kind", "step", "rank", "detail"]
    assert [event["kind"] for event in events] == ["save", "failure"]
    assert (events[1]["rank"], events[1]["detail"]) == (3, "out of memory")
    assert directory.latest_step() == 2


def test_a_resumed_run_continues_its_metrics_and_keeps_its_events(directory):
    with Recorder(directory) as recorder:
        for step in (1, 2, 3):
            recorder.metrics(step=step, **STEP)
        recorder.event("failure", step=3)
    with Recorder(directory) as recorder:
        recorder.rewind(2)
        for step in (3, 4):
            recorder.metrics(step=step, **STEP)
        recorder.event("resume", step=2)
    assert [record["step"] for record in read_records(directory.metrics)] == [1, 2, 3, 4]
    assert [record["kind"] for record in read_records(directory.events)] == ["failure", "resume"]


def test_flushed_metrics_survive_a_kill(directory):
    code = f"""
import os, signal
from shardwright.observe import Recorder, RunDirectory
recorder = Recorder(RunDirectory.at({str(directory.path)!r}))
for step in range(1, 101):
    recorder.metrics(step=step, **{STEP!r})
assert recorder.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert directory.latest_step() == 100
    assert len(list(read_records(directory.metrics))) == 100


def test_lost_metrics_are_an_event(directory, small_disk):
    moved = small_disk / "run"
    moved.mkdir()
    directory.path = moved
    reports: list[str] = []
    with Recorder(directory, report=reports.append) as recorder:
        recorder.metrics(step=1, **STEP)
        recorder.event("start", step=0)
        assert recorder.flush()
        (small_disk / "filler").write_bytes(b"x" * 14 * 4096)
        for step in range(2, 40):
            recorder.metrics(step=step, **STEP)
        # One batch or several: either way a page is too little for 38 steps.
        assert not recorder.flush()
        (small_disk / "filler").unlink()
        recorder.metrics(step=40, **STEP)
    steps = [record["step"] for record in read_records(directory.metrics)]
    events = list(read_records(directory.events))
    assert len(reports) == 1
    assert steps[-1] == 40
    assert [event["kind"] for event in events] == ["start", "warning"]
    assert events[1]["detail"]["dropped"] == 40 - len(steps)


def test_tensorboard_reads_back_what_was_written(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = directory.path / "tensorboard"
    with Recorder(directory, [TensorBoard(folder)]) as recorder:
        for step in (1, 2, 3):
            recorder.metrics(step=step, **{**STEP, "loss": 3.0 - step / 4}, ranks={"step_seconds": [0.5]})
        recorder.event("evaluate", step=3, detail={"loss": 2.75, "sequences": 64})
        recorder.event("warning", step=None, detail="words only")
    with Recorder(directory, [TensorBoard(folder)]) as recorder:
        recorder.rewind(2)
        recorder.metrics(step=3, **{**STEP, "loss": 2.0})
    (first, second) = sorted(folder.iterdir())
    for path in (first, second):
        assert path.name.startswith("events.out.tfevents.")
    before = EventAccumulator(str(first)).Reload()
    assert [(scalar.step, scalar.value) for scalar in before.Scalars("loss")] == [(1, 2.75), (2, 2.5), (3, 2.25)]
    assert [(scalar.step, scalar.value) for scalar in before.Scalars("evaluate/loss")] == [(3, 2.75)]
    assert "mfu" not in before.Tags()["scalars"]  # unknown, so not drawn as zero
    together = EventAccumulator(str(folder)).Reload()
    assert [(scalar.step, scalar.value) for scalar in together.Scalars("loss")] == [(1, 2.75), (2, 2.5), (3, 2.0)]


def test_tensorboard_that_is_not_installed_says_how_to_install_it(tmp_path):
    code = f"""
import sys
sys.modules["tensorboard"] = None
from pathlib import Path
from shardwright.observe import TensorBoard
from shardwright.spec import BadInput
try:
    TensorBoard(Path({str(tmp_path)!r}))
except BadInput as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("observe.tensorboard = true: ")
    assert "pip install 'shardwright[tensorboard]'" in said


def test_tensorboard_on_a_full_disk_says_so_once(small_disk):
    reports: list[str] = []
    sink = TensorBoard(small_disk, report=reports.append)
    assert sink.flush(5)
    (small_disk / "filler").write_bytes(b"x" * 15 * 4096)
    for step in range(1, 100):
        sink.metrics({"step": step, **STEP})
        sink.flush(5)
    assert not sink.close(5)
    assert len(reports) == 1
    assert "No space left on device" in reports[0]


def test_nothing_on_this_floor_imports_torch(tmp_path):
    code = """
import importlib, json, pkgutil, sys
import shardwright.observe, shardwright.cost
for floor in (shardwright.observe, shardwright.cost):
    for module in pkgutil.iter_modules(floor.__path__, floor.__name__ + "."):
        importlib.import_module(module.name)
late = sorted({"rich", "tensorboard", "numpy"} & set(sys.modules))
from pathlib import Path
from shardwright.observe import TensorBoard, progress_for
TensorBoard(Path(sys.argv[1])).close(5)
progress_for(sys.stderr, total_steps=1, start_step=0, log_seconds=1).close()
print(json.dumps({"late": late, "torch": "torch" in sys.modules, "tensorflow": "tensorflow" in sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"late": [], "torch": False, "tensorflow": False}
