# Quire. `make help` lists what can be made; `make up` is where to begin.
#
#   PYTHON=python3.12       the interpreter of the virtual environment (3.11 or 3.12)
#   TORCH=cpu|cuda          which build of torch to install (default: by what this machine has)
#   TORCH_INDEX=URL         where pip looks for torch, and for nothing else (see README.md)
#   ARGS="--port 8123"      passed on to the command behind the target

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
ARGS :=

# The first interpreter that runs, has the right version and can make virtual environments.
PYTHON ?= $(shell for python in python3.12 python3.11 python3; do \
	$$python -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null \
	&& echo $$python && break; done)

TORCH ?= $(shell if [ -e /dev/nvidia0 ] || nvidia-smi -L >/dev/null 2>&1; then echo cuda; else echo cpu; fi)
TORCH_CPU_VERSION := 2.13.0
# Without a GPU Triton only interprets, for tests; with one torch brings the version that it needs.
TRITON := $(if $(filter cpu,$(TORCH)),triton==3.7.1)

.PHONY: help up test schema clients json-answers fuzz families emulated kernels lint install bench chaos soak overload \
	report gpu-check cpu-check compose-test clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
		while IFS="$$(printf '\t')" read -r target text; do printf '  make %-14s %s\n' "$$target" "$$text"; done

up: $(VENV)/.installed ## install what is missing, start everything, chat on http://127.0.0.1:8000
	@exec $(BIN)/quire up $(ARGS)

install: $(VENV)/.installed ## the virtual environment with all services
	@echo "Quire is installed in $(VENV); try: make up"

test: $(VENV)/.installed-dev ## style, types and all tests
	@$(MAKE) --no-print-directory --jobs=2 lint kernels
	@echo "== tests"
	@$(BIN)/python -m pytest -n 2 --durations=10 $(ARGS)

schema: $(VENV)/.installed-dev ## draw 10,000 requests from the OpenAPI document; CASES=number SEED=number
	@SCHEMA_CASES=$(or $(CASES),10000) SCHEMA_OUT=ops/bench/results/schema.json TEST_EXAMPLES=others \
		$(BIN)/python -m pytest tests/e2e/test_schema.py --hypothesis-seed=$(or $(SEED),1) $(ARGS)

emulated: $(VENV)/.installed-dev ## the GPU kernels, compiled for Ampere and Hopper, in an emulator of PTX (20 minutes)
	@for capability in 80 90; do echo "== compute capability $$capability"; \
		TEST_EMULATED=$$capability $(BIN)/python -m pytest -n 2 tests/unit/support tests/unit/gpu_worker/kernels/triton \
			$(ARGS) || exit 1; done

json-answers: $(VENV)/.installed-dev ## 2,000 answers to drawn JSON Schemas while processes are killed; ANSWERS=2000 SEED=1
	@$(BIN)/python -m ops.bench.robust.json_answers --answers $(or $(ANSWERS),2000) --seed $(or $(SEED),1) $(ARGS)

clients: $(VENV)/.installed-dev ## unmodified clients against the shipped model; CLIENTS="openai litellm" for some
	@$(BIN)/python -m tests.clients $(CLIENTS) $(ARGS)

fuzz: $(VENV)/.installed-dev ## 100,000 damaged messages for all that reads any; CASES=number for each reader
	@TEST_FUZZ=$(or $(CASES),9100) $(BIN)/python -m pytest -n 2 tests/fuzz -o timeout=3600 $(ARGS)

families: $(VENV)/.installed-dev ## a tiny model of every family of the installed transformers: equal, or refused
	@TEST_ALL_MODELS=1 $(BIN)/python -m pytest -n 2 -rs tests/unit/gpu_worker/behaviour/test_installed_models.py $(ARGS)

# Tests want them all; who installs has only the best one compiled.
kernels: $(VENV)/.installed
	@$(BIN)/python -m gpu_worker.kernels.cpu.build supported >/dev/null

lint: $(VENV)/.installed-dev ## style, imports and types alone
	@echo "== style (ruff)"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== imports (import-linter)"
	@$(BIN)/lint-imports --no-logo
	@echo "== types (mypy)"
	@$(BIN)/mypy

bench: $(VENV)/.installed-dev ## measure the wire and the chain; results go to ops/bench/results
	@$(BIN)/python -m ops.bench.wire
	@$(BIN)/python -m ops.bench.chain
	@$(BIN)/python -m ops.bench.paced

chaos: $(VENV)/.installed-dev ## streams while everything fails; FAULTS=200 of them, SEED=1
	@$(BIN)/python -m ops.bench.robust.chaos --faults $(or $(FAULTS),200) --seed $(or $(SEED),1) $(ARGS)

soak: $(VENV)/.installed-dev ## a mixed load for MINUTES=60: what grows, what is left behind
	@$(BIN)/python -m ops.bench.robust.soak --minutes $(or $(MINUTES),60) $(ARGS)

overload: $(VENV)/.installed-dev ## ten times as many requests as can be served
	@$(BIN)/python -m ops.bench.robust.overload $(ARGS)

report: $(VENV)/.installed-dev ## make ops/bench/report.md from the results that are there
	@$(BIN)/python -m ops.bench.report

gpu-check: $(VENV)/.installed-dev ## check the GPU back end on this machine's GPU and measure it; OUT=FOLDER for the results
	@$(BIN)/python -m ops.bench.gpu_check $(or $(OUT),ops/bench/results) $(ARGS)

cpu-check: $(VENV)/.installed-dev kernels ## check and measure the CPU kernels on this machine (10 minutes); OUT=FOLDER for the results
	@$(BIN)/python -m ops.bench.cpu_check $(or $(OUT),ops/bench/results) $(ARGS)

compose-test: ## build the images, start docker-compose.yml, try what it promises (needs a container engine)
	@sh ops/images/compose_test.sh

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- installation: each stamp is newer than what it was made from ---------------------------------

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Quire needs Python 3.11 or 3.12 with its venv module (Debian: apt install python3-venv);" \
			"name one with PYTHON=..." >&2; exit 1; fi
	@echo "[1/3] virtual environment in $(VENV) ($$($(PYTHON) --version))"
	@$(PYTHON) -m venv $(VENV)

# The CPU build comes first where there is no GPU, so that nothing later pulls in CUDA's gigabytes.
$(VENV)/.torch-$(TORCH): | $(BIN)/python
	@echo "[2/3] torch, $(TORCH) build (a few hundred megabytes, once)"
ifeq ($(TORCH),cpu)
	@index="$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))"; \
	$(PIP) install $$index torch==$(TORCH_CPU_VERSION)+cpu 2>/dev/null || \
		$(PIP) install $$index torch==$(TORCH_CPU_VERSION)
else ifeq ($(TORCH),cuda)
	@$(PIP) install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) 'torch>=2.11'
else
	@echo "TORCH=$(TORCH): must be cpu or cuda" >&2; exit 1
endif
	@rm -f $(VENV)/.torch-* && touch $@

$(VENV)/.installed: $(VENV)/.torch-$(TORCH) pyproject.toml constraints.txt
	@echo "[3/3] quire and what it needs"
	@$(PIP) install --constraint constraints.txt --editable '.[all]'
	@$(BIN)/python -m gpu_worker.kernels.cpu.build
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "[dev] what tests and checks need"
	@$(PIP) install --constraint constraints.txt --editable '.[dev]' $(TRITON)
	@touch $@
