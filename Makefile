# Two commands to know: `make run` trains a small model on this machine, `make test` runs the tests.
# Each target makes .venv when it is missing, with the exact versions of constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: run test test-all check bench clean

run: $(READY)
	$(BIN)/shardwright train

test: $(READY)
	$(BIN)/python -m pytest -q

test-all: $(READY)
	$(BIN)/python -m pytest -q -m 'slow or not slow'

check: $(READY)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary

bench: $(READY)
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/start.py

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install python3-venv, or set PYTHON=" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
