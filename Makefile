# What one does with this repository. `make demo` and `make test` install what they need, once.
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help venv install model demo test lint fmt bench clean

help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY) ## Make .venv and install everything into it, once

$(READY): pyproject.toml tools/setup_venv.sh
	@bash tools/setup_venv.sh $(VENV)

install: venv model ## The same, and fetch the default model

model: $(READY)
	@$(BIN)/python -m peerinfer model fetch

demo: install ## Four nodes on this machine, a workload, and what routing saves
	@$(BIN)/python -m peerinfer demo --peers 4 $(DEMO_OPTIONS)

lint: $(READY) ## Style, types and the layers of the house
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint model ## Lint, then every test; the core's branch coverage is held at 100 %
	$(BIN)/python -m pytest --cov --cov-report=term

fmt: $(READY) ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(READY) ## Benchmarks; they report and assert nothing
	$(BIN)/python -m pytest benchmarks --benchmark-only

clean: ## Remove everything that was built, .venv included
	rm -rf $(VENV) build dist *.egg-info .coverage .benchmarks .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
