"""`import shardwright as sw; sw.train(...)` does in a script what the command does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import shardwright as sw
from tests.processes import environment

SCRIPT = """
import json, sys
import shardwright as sw

run = sw.RunSpec(
    model=sw.ModelSpec.from_fields({"preset": "tiny", "layers": 2}),
    name="scripted",
    steps=3,
    data=sw.DataSpec(sequence=32),
    batch=sw.BatchSpec(sequences=4),
    layout=sw.Layout.parse("dp=2,microbatch=2,precision=fp32"),
)
outcome = sw.train(run, runs=sys.argv[1])
print(json.dumps(outcome.plain()), file=sys.stderr)
"""


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Ranks are fresh processes: the user's script is not imported again in each of them."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stderr.splitlines()[-1])
    assert (outcome["step"], outcome["ranks"], outcome["stopped"]) == (3, 2, False)
    assert done.stdout.count("step 1/3") == 1
    assert (tmp_path / "scripted" / "checkpoints" / "step-00000003").is_dir()


def test_bad_input_is_an_exception() -> None:
    from shardwright.train import loop  # binds the folder's name; the verb stays

    assert loop
    with pytest.raises(sw.BadInput, match=r"layout\.cp = 2"):
        sw.train(sw.RunSpec(model=sw.ModelSpec.named("tiny"), layout=sw.Layout(cp=2, dp=1)))


def test_importing_is_light() -> None:
    code = "import sys, shardwright; assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
