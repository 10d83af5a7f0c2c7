"""The command line: one file a command; each parses, calls one function and prints.

Every command takes `--json` (one object on standard output, nothing else there) and `--help` with an example that works
as it stands. Exit codes: 0 done; 1 failed at run time; 2 bad input; 3 nothing fits; 75 stopped early and can be
resumed.

Nothing here imports torch before a command needs it.

Start reading at `app.py`.
"""

from shardwright.cli.app import main

__all__ = ["main"]
