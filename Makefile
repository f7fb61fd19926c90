# Two commands for a bare clone: `make demo` and `make test`. Everything runs from .venv; nothing needs activating.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:

VENV := .venv
PY := $(VENV)/bin/python
SOURCES := pyproject.toml $(wildcard setup.py rivet_dagster/engine/sources/*/*.[ch])
PYTEST_ARGS ?=

.PHONY: help setup demo ui test lint types fmt bench peer-check asan build ci clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.demo $(VENV)/.test $(VENV)/.lint ## install everything that developing needs into .venv
	@scripts/setup system

# one stamp for each extra of pyproject.toml
$(VENV)/.%: $(SOURCES) scripts/setup
	@scripts/setup python $*

demo: $(VENV)/.demo ## load the sample shop into a private PostgreSQL and export it through Dagster
	@$(PY) -m rivet_dagster.demo run

ui: $(VENV)/.demo ## the sample shop in Dagster's web interface; Ctrl-C ends it
	@$(PY) -m rivet_dagster.demo ui

test: $(VENV)/.test ## run the whole suite on real servers (PYTEST_ARGS adds options)
	@scripts/setup system
	@$(PY) -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

lint: $(VENV)/.lint ## ruff: rules and format
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

fmt: $(VENV)/.lint ## rewrite the files as ruff formats them
	@$(VENV)/bin/ruff check --fix-only --quiet .
	@$(VENV)/bin/ruff format .

types: $(VENV)/.lint $(VENV)/.test ## mypy, strict
	@$(VENV)/bin/mypy

bench: $(VENV)/.bench $(VENV)/.test ## measure against other tools (minutes to hours)
	@$(PY) -m benchmarks $(BENCH_ARGS)

peer-check: $(VENV)/.test ## rivet-cli's own verdict about our files, at each depth of its validate
	@$(PY) scripts/peer_check

asan: $(VENV)/.test ## the C kernel under AddressSanitizer, fuzzed
	@scripts/kernel_asan.sh

build: $(VENV)/.lint ## build sdist and wheel, and try the wheel in an empty environment
	@scripts/check-wheel

ci: ## what the build server runs
	@.ci/run

clean: ## remove .venv, the demo's data and everything built
	@scripts/clean
