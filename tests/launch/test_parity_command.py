"""`shardwright parity`: agrees where layouts agree, disagrees where they do not, says so in its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.launch import parity
from shardwright.spec import RunFile
from tests.processes import shardwright

RUN = """
steps = 50
[model]
preset = "tiny"
layers = 2
[data]
sequence = 32
[batch]
sequences = 4
[layout]
microbatch = 4
"""


def test_layouts_agree(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    done = shardwright(
        "parity", str(tmp_path / "run.toml"), "dp=2,zero=2,microbatch=1", "tp=2,microbatch=4", "--steps", "3", "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["reference"] == "dp=1,microbatch=4,precision=fp32"
    assert [one["layout"] for one in report["layouts"]] == [
        "dp=2,zero=2,precision=fp32",
        "dp=1,tp=2,microbatch=4,precision=fp32",
    ]
    for one in report["layouts"]:
        assert one["steps"] == 3
        assert one["agrees"]
        assert one["max_loss_difference"] <= 1e-5
        assert one["max_grad_norm_difference"] <= 1e-5


def test_a_wrong_layout_disagrees(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Negative control: a layout whose figures are off by a thousandth is found."""
    from shardwright.cli.app import run

    def figures(file: RunFile) -> list[dict[str, float]]:
        off = 1.001 if file.resolve().layout.world > 1 else 1.0
        return [{"loss": 3.0, "grad_norm": 2.0}, {"loss": 2.0 * off, "grad_norm": 1.0}]

    monkeypatch.setattr(parity, "_figures", figures)
    (tmp_path / "run.toml").write_text(RUN)
    assert run(["parity", str(tmp_path / "run.toml"), "dp=2,microbatch=1", "--steps", "2"]) == 1
    output = capsys.readouterr().out
    assert "loss 1.0e-03" in output
    assert "DISAGREES" in output


def test_bad_layouts_are_refused_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shardwright.cli.app import run

    (tmp_path / "run.toml").write_text(RUN)
    for layout, words in (("tp=3", "must divide"), ("dp=3,microbatch=1", "4 / 3"), ("zreo=1", 'Did you mean "zero"')):
        assert run(["parity", str(tmp_path / "run.toml"), "dp=2,microbatch=1", layout]) == 2
        assert words in capsys.readouterr().err
