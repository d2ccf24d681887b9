# What one does with this repository. `make demo` and `make test` install what they need, once.
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
SGLANG_VENV ?= .venv-sglang

.DEFAULT_GOAL := help
.PHONY: chaos help venv install model demo test sim-soak lint fmt fuzz bench clean nat sglang-cpu test-sglang

help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

test: lint model ## Lint, then every test but those marked sglang or nat; the core's branch coverage is held at 100 %
	$(BIN)/python -m pytest --cov --cov-report=term

SEEDS ?= 1000

sim-soak: $(READY) ## SEEDS random worlds under random faults, on all cores; prints what is wrong and how to repeat it
	@$(BIN)/python -m peerinfer.sim.soak --seeds $(SEEDS)

sglang-cpu: $(READY) ## Install SGLang for machines without a GPU into .venv-sglang, once
	@bash tools/setup_sglang_cpu.sh $(SGLANG_VENV) "$$($(BIN)/python -c \
	    'from peerinfer.engine.sglang_model import converted_model_path; print(converted_model_path())')"

test-sglang: sglang-cpu ## Every test that needs a real SGLang, on the CPU
	PEERINFER_TEST_SGLANG=$(abspath $(SGLANG_VENV))/bin/python $(BIN)/python -m pytest -m sglang

nat: $(READY) ## Real nodes in homes behind real NATs and a real UPnP router, made of network namespaces (root)
	@bash tools/setup_nat.sh
	$(BIN)/python -m pytest -m "nat or not nat" tests/nat

fuzz: $(READY) ## Fuzz every parser of strangers' bytes: make fuzz CASES=10000000
	$(BIN)/python -m tests.fuzz --cases $(or $(CASES),500000)

fmt: $(READY) ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(READY) ## Benchmarks; they report and assert nothing
	$(BIN)/python -m pytest benchmarks --benchmark-only

chaos: model ## Real nodes under random faults for MINUTES (10), every answer held against the right one
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) $(CHAOS_OPTIONS)

clean: ## Remove everything that was built, .venv included
	rm -rf $(VENV) $(SGLANG_VENV) build dist *.egg-info .coverage .benchmarks .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
