"""The words are quick to load: no torch, no numpy."""

import subprocess
import sys

CHECK = """
import sys
import shardwright.spec as spec
run = spec.RunFile('model = "tiny"').resolve()
spec.write_run(run)
spec.Cluster.parse("8xh100")
spec.parameter_count(run.model)
heavy = {"torch", "numpy", "transformers"} & {name.split(".")[0] for name in sys.modules}
sys.exit(f"imported {sorted(heavy)}" if heavy else 0)
"""


def test_neither_torch_nor_numpy_is_imported():
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_check_would_notice():
    done = subprocess.run(
        [sys.executable, "-c", CHECK.replace("import sys\n", "import sys, numpy\n", 1)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "imported ['numpy']" in done.stderr
