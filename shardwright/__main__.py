"""`python -m shardwright`: the same as `shardwright`."""

from shardwright.cli import main

main()
