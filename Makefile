# Quire. `make help` lists what can be made; `make up` is where to begin.
#
#   PYTHON=python3.14       the interpreter of the virtual environment (3.11 or later)
#   TORCH=cpu|cuda          which build of torch to install (default: by what this machine has)
#   TORCH_INDEX=URL         where to look for torch, and for nothing else (see docs/operate.md)
#   ARGS="--port 8123"      passed on to the command behind the target

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/python ops/uv.py
INSTALL := $(UV) pip install --quiet
# Versions, and hashes of what is downloaded: another file than those that were locked is refused.
LOCKED := --constraint constraints.txt --build-constraints constraints.txt
ARGS :=

# The first interpreter that runs, has the right version and can make virtual environments.
PYTHON ?= $(shell for python in python python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

TORCH ?= $(shell if [ -e /dev/nvidia0 ] || nvidia-smi -L >/dev/null 2>&1; then echo cuda; else echo cpu; fi)
TORCH_VERSION := 2.13.0
TORCH_INSTALL = $(INSTALL) $(if $(TORCH_INDEX),--default-index $(TORCH_INDEX)) --no-deps torch==$(TORCH_VERSION)
# Without a GPU Triton only interprets, for tests; with one torch brings the version that it needs.
TRITON := $(if $(filter cpu,$(TORCH)),triton==3.7.1)

.PHONY: help up wheel notes test schema clients bfcl json-answers fuzz families emulated kernels tested-kernels lint \
	install bench chaos soak overload report gpu-check cpu-check chart compose-test lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
		while IFS="$$(printf '\t')" read -r target text; do printf '  make %-14s %s\n' "$$target" "$$text"; done

up: $(VENV)/.installed ## install what is missing, start everything, chat on http://127.0.0.1:8000
	@exec $(BIN)/quire up $(ARGS)

install: $(VENV)/.installed ## the virtual environment with all services
	@echo "Quire is installed in $(VENV); try: make up"

test: $(VENV)/.installed-dev ## style, types and all tests
	@$(MAKE) --no-print-directory --jobs=2 lint tested-kernels
	@echo "== tests"
	@$(BIN)/python -m pytest -n 4 --durations=10 $(ARGS)

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

bfcl: $(VENV)/.installed-dev ## the calls of the Berkeley leaderboard, written and read in every format
	@$(BIN)/python -m tests.bfcl $(ARGS)

fuzz: $(VENV)/.installed-dev ## 100,000 damaged messages for all that reads any; CASES=number for each reader
	@TEST_FUZZ=$(or $(CASES),9100) $(BIN)/python -m pytest -n 2 tests/fuzz -o timeout=3600 $(ARGS)

families: $(VENV)/.installed-dev ## a tiny model of every family of the installed transformers: equal, or refused
	@TEST_ALL_MODELS=1 $(BIN)/python -m pytest -n 2 -rs tests/unit/gpu_worker/behaviour/test_installed_models.py $(ARGS)

# Who installs has only the best one compiled. Tests want some more, and `make cpu-check` all.
kernels: $(VENV)/.installed
	@$(BIN)/python -m gpu_worker.kernels.cpu.build supported >/dev/null

tested-kernels: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.support.native

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

chart: $(VENV)/.installed-dev ## render ops/helm/quire with Helm and hold it against the schemas of Kubernetes' API
	@$(INSTALL) $(LOCKED) --editable '.[chart]'
	@$(BIN)/python -m pytest -q tests/unit/repository/test_chart.py $(ARGS)

compose-test: ## build the images, start docker-compose.yml, try what it promises (needs a container engine)
	@sh ops/images/compose_test.sh

# From the index alone, which has the files for all systems and versions of Python, with their hashes.
lock: $(VENV)/.installed-dev ## lock versions and hashes of all that is needed in constraints.txt; ARGS=--upgrade for newer ones
	@echo torch==$(TORCH_VERSION) | UV_INDEX= UV_FIND_LINKS= $(UV) pip compile pyproject.toml --extra dev --extra chart \
		--constraint - --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --no-header \
		--quiet --output-file constraints.txt $(ARGS)
	@awk 'BEGIN {print "# Made by `make lock`. torch, and what comes with it, is chosen by Makefile and Dockerfile."} \
		/^[a-z]/ {keep = !/^(torch|triton|nvidia-|cuda-)/} keep' constraints.txt >$(VENV)/.locked
	@mv $(VENV)/.locked constraints.txt

wheel: $(VENV)/.installed ## dist/quire-*.whl: all of Quire that serves, for machines without the repository
	@$(UV) build --quiet --out-dir dist # by way of the sources' archive, so that no old `build` gets into it
	@ls dist/*.whl

notes: ## what is new in this version, from CHANGELOG.md
	@version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) && \
		awk -v wanted="## $$version" '/^## / {inside = ($$0 == wanted); next} inside' CHANGELOG.md

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- installation: each stamp is newer than what it was made from ---------------------------------

$(BIN)/python:
	@if ! $(PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "Quire needs Python 3.11 or later with its venv module (Debian: apt install python3-venv);" \
			"name one with PYTHON=..." >&2; exit 1; fi
	@echo "[1/3] virtual environment in $(VENV) ($$($(PYTHON) --version))"
	@$(PYTHON) -m venv $(VENV)

# uv fills the environment: that of the system, or else one of the environment's own.
$(VENV)/.uv: | $(BIN)/python
	@command -v uv >/dev/null || { awk '/^[a-z]/ {keep = /^uv==/} keep' constraints.txt >$(VENV)/.uv-locked && \
		$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r $(VENV)/.uv-locked; }
	@touch $@

# The CPU build comes first where there is no GPU, so that nothing later pulls in CUDA's gigabytes: from where
# packages come from here, or else from PyTorch's own index. What torch needs comes with the rest.
$(VENV)/.torch-$(TORCH): | $(VENV)/.uv
	@echo "[2/3] torch, $(TORCH) build (a few hundred megabytes, once)"
ifeq ($(TORCH),cpu)
	@$(TORCH_INSTALL)+cpu 2>/dev/null || $(TORCH_INSTALL) --torch-backend cpu 2>/dev/null || $(TORCH_INSTALL)
else ifeq ($(TORCH),cuda)
	@$(TORCH_INSTALL)
else
	@echo "TORCH=$(TORCH): must be cpu or cuda" >&2; exit 1
endif
	@rm -f $(VENV)/.torch-* && touch $@

$(VENV)/.installed: $(VENV)/.torch-$(TORCH) pyproject.toml constraints.txt
	@echo "[3/3] quire and what it needs"
	@$(INSTALL) $(LOCKED) --editable '.[bench]'
	@$(BIN)/python -m gpu_worker.kernels.cpu.build
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "[dev] what tests and checks need"
	@$(INSTALL) $(LOCKED) --editable '.[dev]' $(TRITON)
	@touch $@
