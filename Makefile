# The verbs of chatmesh. Everything lives in this folder: .venv, .chatmesh (state), build.
.DEFAULT_GOAL := help
.PHONY: help run up down test check sbom format proto bench bench-engine bench-safety chaos soak clean

PYTHON ?= python3
BIN := .venv/bin
# xds-protos and others install much; pip's own progress bars tell how far it is.
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
SOURCES := pyproject.toml constraints.txt
SERVICES := gateway safety_svc tokenizer_svc inference_svc conversation_svc billing_svc
KERNELS := $(wildcard inference_svc/engine/torch/kernels/cpp/* inference_svc/engine/torch/kernels/*.py \
  safety_svc/fast/cpp/* safety_svc/fast/*.py mesh/chassis/native*.py)
LITELLM := litellm[proxy]==1.106.2
ROUTER := sglang-router==0.3.2
LLM_GUARD := llm-guard==0.3.16

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# A stamp is renewed when the set of dependencies changes; a failed install leaves none.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "chatmesh needs Python 3.11 or later: make PYTHON=/path/of/python3.11 …" >&2; exit 1; }
	@echo "chatmesh: making .venv"
	$(PYTHON) -m venv .venv

.venv/run.stamp: $(SOURCES) | $(BIN)/python
	@echo "chatmesh: installing what it runs on (about a minute, once)"
	$(PIP) -e .
	@# xds-protos brings older copies of these modules, without which no trace is exported.
	$(PIP) --quiet --force-reinstall --no-deps opentelemetry-proto
	@touch $@

# The C++ of the torch engine and of the safety service; without a compiler both do without.
.venv/kernels.stamp: .venv/run.stamp $(KERNELS)
	$(BIN)/python -m inference_svc.engine.torch.kernels.build
	$(BIN)/python -m safety_svc.fast.build
	@touch $@

.venv/dev.stamp: .venv/run.stamp .venv/kernels.stamp
	@echo "chatmesh: installing what it is checked with (once)"
	$(PIP) -e '.[dev]'
	@touch $@

run: .venv/run.stamp .venv/kernels.stamp ## install, start everything, chat; Ctrl-C stops it
	@exec $(BIN)/python -m mesh.up

up: .venv/run.stamp .venv/kernels.stamp ## the same, detached
	@$(BIN)/python -m mesh.up --detach

down: .venv/run.stamp ## stop what `make up` started
	@$(BIN)/python -m mesh.ctl down

test: .venv/dev.stamp ## every test
	$(BIN)/python -m pytest tests --ignore=tests/bench

check: .venv/dev.stamp sbom ## format, lint, types, contracts, imports, supply chain, house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SERVICES) mesh
	$(BIN)/python proto/build.py --check
	$(BIN)/lint-imports
	$(BIN)/python -m tests.supply check
	$(BIN)/python -m pytest tests/house

sbom: .venv/dev.stamp ## write what is installed into build/sbom.json (CycloneDX)
	$(BIN)/python -m tests.supply sbom build/sbom.json

format: .venv/dev.stamp ## put the sources into the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: .venv/dev.stamp ## compile the contracts into proto/gen/python
	$(BIN)/python proto/build.py

# The peers of the benchmark get venvs of their own: their pins are not ours.
.venv-bench/litellm.stamp: Makefile tests/bench/litellm-constraints.txt
	@echo "chatmesh: installing LiteLLM for the benchmark (once)"
	$(PYTHON) -m venv .venv-bench
	@echo '*' > .venv-bench/.gitignore
	.venv-bench/bin/python -m pip install --disable-pip-version-check \
	  -c tests/bench/litellm-constraints.txt '$(LITELLM)'
	@touch $@

.venv-bench/router.stamp: Makefile tests/bench/router-constraints.txt | .venv-bench/litellm.stamp
	@echo "chatmesh: installing SGLang's router for the benchmark (once)"
	$(PYTHON) -m venv .venv-bench/router
	.venv-bench/router/bin/python -m pip install --disable-pip-version-check \
	  -c tests/bench/router-constraints.txt '$(ROUTER)'
	@touch $@

# Of llm-guard one scanner is used, which needs nothing of torch, spaCy and transformers.
.venv-bench/safety.stamp: Makefile tests/bench/safety-constraints.txt
	@echo "chatmesh: installing other screens for the benchmark (once)"
	@mkdir -p .venv-bench && echo '*' > .venv-bench/.gitignore
	$(PYTHON) -m venv .venv-bench/safety
	.venv-bench/safety/bin/python -m pip install --disable-pip-version-check \
	  -c tests/bench/safety-constraints.txt alt-profanity-check structlog
	.venv-bench/safety/bin/python -m pip install --disable-pip-version-check --no-deps '$(LLM_GUARD)'
	@touch $@

bench: .venv/dev.stamp .venv-bench/router.stamp ## measure turns against LiteLLM and a pure proxy, 10 minutes (BENCH="--against FOLDER" …)
	$(BIN)/python -m tests.bench $(BENCH)

bench-engine: .venv/dev.stamp ## measure the torch engine against llama.cpp, vLLM and others (BENCH="--rounds 3" …)
	$(BIN)/python -m tests.bench.engine $(BENCH)

bench-safety: .venv/dev.stamp .venv-bench/safety.stamp ## measure the prompt screen against others on the rows of a file (ROWS=FILE.jsonl)
	$(BIN)/python -m tests.bench.safety_peers $(ROWS)

chaos: .venv/dev.stamp ## kill and pause processes under resuming clients for 10 minutes (CHAOS="--seconds 60" …)
	$(BIN)/python -m tests.chaos $(CHAOS)

MINUTES ?= 60
soak: .venv/dev.stamp ## traffic and kills for MINUTES (60): is what the copy takes flat? (SOAK="--plot FILE" …)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAK)

clean: ## remove what was installed, built and cached; keeps .chatmesh (the data)
	rm -rf .venv .venv-bench build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
