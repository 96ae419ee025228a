# Every task that a person or continuous integration runs. `make` alone lists them.

PYTHON ?= python3
# Processes that run tests side by side; each holds a torch of its own.
WORKERS ?= 2
# More for pytest, such as PYTEST_ARGS="-k split -x".
PYTEST_ARGS ?=
# More for the benchmarks, such as BENCH_ARGS=--write.
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help setup bootstrap demo test test-gpu test-gpu2 lint types format fuzz bench clean

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make .venv with everything in it, and see to Graphviz, a C++ compiler and Python's headers

# Runs again only when what is installed changes; the quick checks of bootstrap run each time.
$(INSTALLED): pyproject.toml constraints.txt | bootstrap
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

bootstrap:
	@PYTHON="$(PYTHON)" .ci/bootstrap.sh $(VENV)

demo: $(INSTALLED) ## compile a small model for a few sizes, and leave drawings and an explanation in out/
	$(BIN)/fxbucket demo --out out

test: lint types ## everything that must pass: lint, types, tests
	$(PYTEST) $(PYTEST_ARGS)

# Takes whatever torch with CUDA the interpreter has, and installs nothing.
test-gpu: ## what needs a GPU, with PYTHON=... of your own
	PYTHONPATH=$(CURDIR) $(PYTHON) -m pytest -q -m gpu $(PYTEST_ARGS)

test-gpu2: ## what needs two GPUs and NCCL, with PYTHON=... of your own
	PYTHONPATH=$(CURDIR) $(PYTHON) -m pytest -q -m gpu2 $(PYTEST_ARGS)

lint: $(INSTALLED) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED) ## mypy, strict
	$(BIN)/mypy

format: $(INSTALLED) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(INSTALLED) ## the property tests alone, with thousands of examples each: hours
	HYPOTHESIS_PROFILE=long $(PYTEST) -m hypothesis --timeout 0 $(PYTEST_ARGS)

bench: $(INSTALLED) ## run every benchmark; BENCH_ARGS=--write renews docs/benchmarks.md
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[bench]'
	$(BIN)/python -m tests.benchmarks all $(BENCH_ARGS)

clean: ## remove what builds, tests and the demo left; .venv stays
	rm -rf out build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find fxbucket passes visualize tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
