"""The folder of a run: made whole, resumed when it is the same run, refused when not, held by one process."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.observe import RunDirectory, differences, runs_folder
from shardwright.spec import BadInput, Layout, RunSpec, write_run

HOLDER = """
import sys, time
from pathlib import Path
from shardwright.observe import RunDirectory
from shardwright.spec import ModelSpec, RunSpec, write_run
run = RunSpec(model=ModelSpec.named("tiny"), name="first").resolve()
directory = RunDirectory.open(Path(sys.argv[1]), run, write_run(run))
print("holding", flush=True)
time.sleep(60)
"""


def open_run(runs: Path, run: RunSpec, **keywords: bool) -> RunDirectory:
    return RunDirectory.open(runs, run, write_run(run), **keywords)


def names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def changed(run: RunSpec, section: str, **values: object) -> RunSpec:
    return dataclasses.replace(run, **{section: dataclasses.replace(getattr(run, section), **values)})


def test_a_new_directory_is_whole(tmp_path, run):
    with open_run(tmp_path / "deep" / "runs", run) as directory:
        assert directory.path == tmp_path / "deep" / "runs" / "first"
        assert sorted(entry.name for entry in directory.path.iterdir()) == [
            "checkpoints",
            "lock",
            "logs",
            "run.toml",
            "traces",
        ]
        assert directory.stored_run() == run
        assert directory.latest_step() == 0
        assert directory.locked
        assert directory.log_file(7).name == "rank-007.log"
    assert names_in(tmp_path / "deep" / "runs") == ["first"]  # nothing temporary left behind


def test_an_empty_folder_of_that_name_is_taken(tmp_path, run):
    (tmp_path / "first").mkdir()
    with open_run(tmp_path, run) as directory:
        assert directory.stored_run() == run


def test_another_folder_of_that_name_is_not(tmp_path, run):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "letters.txt").write_text("dear")
    with pytest.raises(BadInput, match=r"is not a run: it has no run\.toml"):
        open_run(tmp_path, run)


def test_the_same_run_resumes(tmp_path, run):
    open_run(tmp_path, run).close()
    (tmp_path / "first" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    with open_run(tmp_path, run) as directory:
        assert directory.latest_step() == 2


def test_a_run_that_computes_the_same_may_be_spread_and_shown_otherwise(tmp_path, run):
    open_run(tmp_path, run).close()
    other = changed(run, "observe", log_seconds=1.0)
    other = changed(other, "checkpoint", every=7)
    other = changed(other, "data", workers=3, folder="elsewhere")
    other = dataclasses.replace(other, layout=Layout(dp=1, tp=4), device="cpu")
    with open_run(tmp_path, other) as directory:
        assert directory.stored_run() == other
    assert not list((tmp_path / "first").glob(".*"))


def test_each_difference_is_named(tmp_path, run):
    open_run(tmp_path, run).close()
    before = (tmp_path / "first" / "run.toml").read_text()
    other = changed(run, "optimizer", learning_rate=0.0003)
    other = changed(dataclasses.replace(other, seed=43), "data", separator="end")
    with pytest.raises(BadInput) as refused:
        open_run(tmp_path, other)
    message = str(refused.value)
    assert "optimizer.learning_rate: 0.001 there, 0.0003 here" in message
    assert "seed: 42 there, 43 here" in message
    assert 'data.separator: not set there, "end" here' in message
    assert "--set name=first-2" in message
    assert (tmp_path / "first" / "run.toml").read_text() == before
    open_run(tmp_path, run).close()  # the refused opening let go of the lock


def test_more_steps_differ_only_where_the_schedule_depends_on_them(run):
    longer = dataclasses.replace(run, steps=400)
    assert differences(run, longer) == ["steps: 200 there, 400 here"]
    flat, flat_longer = (changed(one, "schedule", name="constant") for one in (run, longer))
    assert differences(flat, flat_longer) == []


def test_fresh_never_overwrites(tmp_path, run):
    open_run(tmp_path, run, fresh=True).close()
    (tmp_path / "first" / "metrics.jsonl").write_text(json.dumps({"step": 120}) + "\n")
    with pytest.raises(BadInput, match=r"stands at step 120; --fresh never overwrites.*--set name=first-2"):
        open_run(tmp_path, run, fresh=True)


def test_one_process_at_a_time_and_none_after_it_was_killed(tmp_path, run):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        with pytest.raises(BadInput, match=f"is being run by process {holder.pid} on "):
            open_run(tmp_path, run)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    open_run(tmp_path, run).close()


def test_a_process_that_was_faster_wins(tmp_path, run, monkeypatch):
    first = open_run(tmp_path, run)
    # As if the folder had appeared after it was looked for.
    monkeypatch.setattr("shardwright.observe.directory._holds_something", lambda _: False)
    with pytest.raises(BadInput, match=f"is being run by process {os.getpid()}"):
        open_run(tmp_path, run)
    first.close()
    assert names_in(tmp_path) == ["first"]


@pytest.mark.parametrize("pages", [15, 16])  # of 16: room for the lock alone, and for nothing
def test_a_full_disk_leaves_nothing_behind(small_disk, run, pages):
    (small_disk / "filler").write_bytes(b"x" * pages * 4096)
    with pytest.raises(BadInput, match=r"No space left on device\. Free some space there"):
        open_run(small_disk, run)
    assert names_in(small_disk) == ["filler"]


def test_a_place_that_is_no_folder(tmp_path, run):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(BadInput, match="first cannot be written there"):
        open_run(tmp_path / "runs", run)


def test_reading_takes_no_lock_and_knows_its_neighbours(tmp_path, run):
    with open_run(tmp_path, run):
        assert RunDirectory.at(tmp_path / "first").stored_run() == run
        assert not RunDirectory.at(tmp_path / "first").locked
    with pytest.raises(BadInput, match=r"there is no such folder\. Runs there: first"):
        RunDirectory.at(tmp_path / "frist")


def test_where_runs_are(monkeypatch):
    monkeypatch.delenv("SHARDWRIGHT_RUNS", raising=False)
    assert runs_folder(None) == Path("runs")
    monkeypatch.setenv("SHARDWRIGHT_RUNS", "elsewhere")
    assert runs_folder(None) == Path("elsewhere")
    assert runs_folder("here") == Path("here")
