# leaseproof: everything a fresh clone needs is git, make and Python 3.11+.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
TIER   ?=
ARGS   ?=
SYSTEM ?= agentrun_reference.conformance:system

.DEFAULT_GOAL := help
.PHONY: help setup verify controls test lint format types clean

help: ## Say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.done ## Make the virtual environment, pinned by constraints.txt

$(VENV)/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

verify: setup ## Try every claim that this machine can run, write reports/evidence.{html,md,json}, print the matrix
	$(BIN)/leaseproof verify --system $(SYSTEM) $(if $(TIER),--tier $(TIER)) $(ARGS)

controls: setup ## Run every negative control and correct variant, print the grid
	$(BIN)/leaseproof controls --system $(SYSTEM) $(ARGS)

test: setup ## Run the kit's own tests, and the suites against the reference
	$(BIN)/python -m pytest -n auto $(ARGS)

lint: setup ## Style, imports, types, structure
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: setup ## Format the code
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean: ## Remove the environment, caches and reports
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache reports/evidence.* reports/facts
