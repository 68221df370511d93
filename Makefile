# `make test` and `make demo` do everything on a machine that has only Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
RUN := OMP_NUM_THREADS=1 $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: install test test-full demo lint bench clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -c constraints.txt torch
	$(VENV)/bin/python -m pip install -q -c constraints.txt -e ".[dev,hf,images]"
	touch $@

install: $(STAMP)

test: $(STAMP) lint
	$(RUN) -m pytest -q -n 2

test-full: $(STAMP) lint
	$(RUN) -m pytest -q -n 2 -m "full or not full"

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright
	$(VENV)/bin/lint-imports

demo: $(STAMP)
	$(RUN) -m trimtab.cli demo

bench: $(STAMP)
	$(RUN) benchmarks/step.py
	$(RUN) benchmarks/fleet.py

clean:
	rm -rf $(VENV) build dist *.egg-info
