PYTHON ?= $(shell command -v python3.11 || command -v python3)
CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=/path/to/python")'
BIN = .venv/bin
# The newest interpreter that really starts; version managers put stubs on the path.
NEWEST = $(shell for v in 3.14 3.13 3.12 3.11; do python$$v -c '' 2>/dev/null && command -v python$$v && break; done)

.PHONY: test test-newest clean

.venv/ready: pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/pytest -q -n 2 -m 'not slow and not gpu'

.venv-newest/ready: pyproject.toml
	$(NEWEST) -m venv .venv-newest
	.venv-newest/bin/pip install -q -U -e '.[dev]'
	touch $@

test-newest: .venv-newest/ready
	.venv-newest/bin/pytest -q -n 2 -m 'not slow and not gpu'

clean:
	rm -rf .venv .venv-newest build *.egg-info
