# Every target sets up what it needs in .venv: a machine needs make and Python 3.11 or newer, and a package index.
#   make demo      the whole chain on this machine: profile, plan, simulate, run, compare
#   make test      what CI runs: lint, format, types, import contracts, tests that take seconds
#   make test-all  the same with the tests that take minutes
#   make bench     benchmarks (minutes)
#   make figures   all figures, in out/figures (most of an hour)
#   make docs      the documentation as a site, in out/site

CANDIDATES := python3.11 python3.14 python3.13 python3.12 python3
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach p,$(CANDIDATES),$(shell $(p) -c '$(USABLE)' >/dev/null 2>&1 && echo $(p))))

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

export OPENBLAS_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-all bench figures docs lint
.DELETE_ON_ERROR:

demo: $(READY)
	@$(BIN)/hiertrain demo --out out/demo

lint: $(READY)
	@echo '== ruff check'
	@$(BIN)/ruff check --quiet .
	@echo '== ruff format --check'
	@$(BIN)/ruff format --check --quiet .
	@echo '== mypy'
	@$(BIN)/mypy
	@echo '== lint-imports'
	@$(BIN)/lint-imports

figures: $(READY)
	@$(BIN)/hiertrain figure all --out out/figures

docs: $(READY)
	@echo '== mkdocs build --strict'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

test: lint docs
	@echo '== pytest, all but the slow tests'
	@$(BIN)/pytest -m 'not slow'

test-all: lint docs
	@echo '== pytest, all tests'
	@$(BIN)/pytest

bench: $(READY)
	@$(BIN)/python -m experiments.bench
	@$(BIN)/python -m experiments.bench_executor

$(READY): pyproject.toml
	@test -n '$(PYTHON)' || { echo 'hiertrain needs Python 3.11 or newer with venv; none of these works: $(CANDIDATES)' >&2; exit 1; }
	@echo '== set-up: $(VENV) with $(PYTHON)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
