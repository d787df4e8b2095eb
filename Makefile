# Everything works on a machine that has only make, Python >= 3.11 and a way to PyPI.
# `make demo PYTHON=python3.12` picks the interpreter; `VENV=elsewhere` picks the place of the environment.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install
PYTEST := $(BIN)/python -m pytest --numprocesses=auto --dist=worksteal

DEMO := examples/demo-cpu-2ranks

# Tests start many Pythons: with compiled files kept, in __pycache__, they start in half the time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test browser quick lint format bench dist docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.runs ## the report of a recorded training, in an environment made for it
	$(BIN)/stepscope report $(DEMO)

test: $(VENV)/.develops ## tests and docstring examples, but those in a browser; ALL=1 adds those that try whole collections, COVERAGE=1 measures branch coverage of the quick ones that try no examples of hypothesis, which must reach the bar in pyproject.toml
	$(if $(COVERAGE),$(PYTEST) -m "not slow and not hypothesis" --cov --cov-report=term)
	$(PYTEST) -m "$(if $(COVERAGE),(slow or hypothesis) and )not browser$(if $(ALL),, and not exhaustive)"

browser: $(VENV)/.develops ## the page in Chromium and Firefox; skipped where there is none
	$(PYTEST) tests/browser

quick: $(VENV)/.develops ## the tests that take no time, for daily work
	$(PYTEST) -m "not slow"

lint: $(VENV)/.develops ## ruff (rules and format) and mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict src

format: $(VENV)/.develops ## put the code into its format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.develops ## time and memory of `stepscope report` on big traces; BENCH_PEERS=1 measures other tools too
	$(BIN)/python benchmarks/run.py

dist: $(VENV)/bin/python ## a wheel in dist/, to install elsewhere
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist .

docs: $(VENV)/.develops ## the pages of docs/ that are made from the code
	$(BIN)/python scripts/generate_docs.py

clean: ## remove the environment and every cache
	rm -rf $(VENV) .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.11 found; name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "hint: on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# Both stamps install the package as a link to src, so that neither goes stale when the code changes; but what is compiled.
COMPILED := scripts/build_hook.py src/stepscope/readers/chrome/scan.c src/stepscope/core/nesting.c

$(VENV)/.runs: pyproject.toml $(COMPILED) | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

# Of what is for developers, tests import a part: what is imported is compiled then.
$(VENV)/.develops: pyproject.toml $(COMPILED) | $(VENV)/bin/python
	$(PIP) --no-compile --editable '.[dev]'
	@touch $@ $(VENV)/.runs
