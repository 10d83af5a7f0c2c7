"""How long the torch-free commands take to answer, beside starting Python itself.

python benchmarks/start.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from time import perf_counter

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "shardwright --help": [sys.executable, "-m", "shardwright", "--help"],
    "shardwright --version": [sys.executable, "-m", "shardwright", "--version"],
    "shardwright show llama3-70b": [sys.executable, "-m", "shardwright", "show", "llama3-70b"],
    "shardwright show 64x8xh100": [sys.executable, "-m", "shardwright", "show", "64x8xh100"],
}


def seconds(command: list[str]) -> float:
    """Median of seven runs, after one that warms the disk's cache."""
    taken = []
    for _ in range(8):
        began = perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        taken.append(perf_counter() - began)
    return statistics.median(taken[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = {name: seconds(command) for name, command in COMMANDS.items()}
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<32} {value:.3f} s")


if __name__ == "__main__":
    main()
