# The first of the named interpreters that starts, is 3.11 or newer and can make a virtual environment;
# version managers put stubs that do none of this on the path.
IS_USABLE = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
first_python = $(shell for p in $(1); do \
	"$$p" -c '$(IS_USABLE)' 2>/dev/null && command -v "$$p" && break; done)
PYENV_VERSIONS = $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions

PYTHON ?= $(call first_python,python3.11 python3)
NEWEST ?= $(call first_python,$(foreach v,3.14 3.13 3.12 3.11,\
	python$(v) $(wildcard $(PYENV_VERSIONS)/$(v).*/bin/python$(v))) python3)
need_python = @{ test -n "$(1)" && $(1) -c '$(IS_USABLE)' 2>/dev/null; } || { echo \
	"got '$(1)'; Python 3.11 or newer with venv is needed: make $(2)=/path/to/python" >&2; exit 2; }

BIN = .venv/bin
# Tests of one file share what they build, so one process runs them all.
PARALLEL = -q -n 2 --dist loadfile
NOT_HARDWARE = not gpu and not tpu_compiler and not gpu_compiler and not corpus and not browser

.PHONY: demo test test-slow test-compilers test-corpus test-examples test-browser test-newest docs fuzz clean

# What plans and trains the models of this repository: no agents (torch), no linters.
.venv/models: pyproject.toml constraints.txt
	$(call need_python,$(PYTHON),PYTHON)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[models]'
	touch $@

.venv/ready: .venv/models
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,rl,docs]'
	touch $@

# A model planned for a machine that is not there, and a small one trained under its plan on this one.
demo: .venv/models
	$(BIN)/automap plan models.t5:t5_base --topology v5e:4x4 -o plan.json
	$(BIN)/python -m examples.train_on_cpu_mesh

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest $(PARALLEL)

# Everything that needs no accelerator and no vendor compiler.
test-slow: .venv/ready
	$(BIN)/pytest $(PARALLEL) -m '$(NOT_HARDWARE)'

# The documentation as a site, in build/docs. `make test` builds it too, with the same strictness.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

# Ten thousand changed inputs of every format, and the table of what came of them. Takes an hour or two on one core.
fuzz: .venv/ready
	$(BIN)/python -m tests.fuzz -o docs/reports/fuzzing.md

# The TPU and GPU compilers, which compile ahead of time. One process at a time may use the TPU's.
.venv/compilers: .venv/ready
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,rl,tpu,gpu-compiler]'
	touch $@

test-compilers: .venv/compilers
	JAX_PLATFORMS=cpu $(BIN)/pytest -q -m 'tpu_compiler or gpu_compiler'

# Steps of other libraries, in an environment of their own.
.venv-corpus/ready: pyproject.toml constraints.txt
	$(call need_python,$(PYTHON),PYTHON)
	$(PYTHON) -m venv .venv-corpus
	.venv-corpus/bin/pip install -q -c constraints.txt -e '.[corpus]'
	touch $@

test-corpus: .venv-corpus/ready
	.venv-corpus/bin/pytest -q -m corpus tests/corpus

# The projects of the folder examples, in all their frameworks.
.venv-examples/ready: pyproject.toml constraints.txt
	$(call need_python,$(PYTHON),PYTHON)
	$(PYTHON) -m venv .venv-examples
	.venv-examples/bin/pip install -q -c constraints.txt -e '.[examples]' pytest hypothesis
	touch $@

test-examples: .venv-examples/ready
	.venv-examples/bin/pytest -q -m 'slow or not slow' tests/examples

# The pages of plans in a headless browser: the system's chromium, where it is installed.
.venv/browser: .venv/ready
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,rl,browser]'
	touch $@

test-browser: .venv/browser
	$(BIN)/pytest -q -m browser tests/automap/report

.venv-newest/ready: pyproject.toml
	$(call need_python,$(NEWEST),NEWEST)
	$(NEWEST) -m venv .venv-newest
	.venv-newest/bin/pip install -q -U -e '.[dev]'
	touch $@

test-newest: .venv-newest/ready
	.venv-newest/bin/pytest $(PARALLEL)

clean:
	rm -rf .venv .venv-corpus .venv-examples .venv-newest build *.egg-info
