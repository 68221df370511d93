# `make test` and `make demo` do everything on a machine that has only Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
RUN := OMP_NUM_THREADS=1 $(VENV)/bin/python
STAMP := $(VENV)/.installed
PEERS := mup==1.0.0 unit-scaling==0.3.5 einops tabulate

.PHONY: install test quick test-slow test-sets test-full demo lint docs dist dist-check bench experiments evidence clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -c constraints.txt torch
	$(VENV)/bin/python -m pip install -q -c constraints.txt -e ".[dev,hf,images,docs,ray,optuna]"
	$(VENV)/bin/python -m pip install -q --no-deps $(PEERS)  # peers to compare with; their dependencies pull another torch
	touch $@

install: $(STAMP)

# Two jobs at once: the linters beside the tests.
test: $(STAMP)
	$(MAKE) --no-print-directory -j 2 lint quick

quick: $(STAMP)
	$(RUN) -m pytest -q -n 3

test-slow: $(STAMP)
	$(RUN) -m pytest -q -n 2 -m "slow and not full"

# The same numbers on other machines' kernels: fleets, resumption and kills under other instruction sets.
SETS := "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE" \
        "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2"
test-sets: $(STAMP)
	for set in $(SETS); do echo "== $$set"; \
	  env $$set OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n 2 -m "not full" \
	    tests/runs/test_fleet.py tests/sweeps/test_same_numbers.py -k "numbers or bitwise or rows" || exit 1; done

test-full: $(STAMP) lint
	$(RUN) -m pytest -q -n 2 -m "full or not full"

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright
	$(VENV)/bin/lint-imports

# The site, every warning an error: build/docs/index.html.
docs: $(STAMP)
	$(RUN) docs/generate.py --check
	$(RUN) -m sphinx -q -W --keep-going -b html docs build/docs

# Wheel and sdist.
dist: $(STAMP)
	$(RUN) -m build -q --outdir dist

# The wheel in an environment with torch alone: the library works, each command says what to install.
dist-check: dist
	rm -rf build/alone
	$(PYTHON) -m venv build/alone
	build/alone/bin/python -m pip install -q -c constraints.txt torch
	build/alone/bin/python -m pip install -q --no-deps dist/*.whl
	cd build && alone/bin/python ../tests/support/torch_alone.py

demo: $(STAMP)
	$(RUN) -m trimtab.cli demo

# The experiments with their cost and state; make experiments NAME=llama [SIZE=tiny|small|paper] reruns one.
experiments: $(STAMP)
	$(RUN) experiments/evidence.py $(if $(NAME),run $(NAME) --size $(or $(SIZE),small),list)

# Every figure and page from the stored results.
evidence: $(STAMP)
	$(RUN) experiments/evidence.py

# Every benchmark anew, their results in benchmarks/results.json, and docs/benchmarks.md from them; make bench NAME=step
# reruns one. What Ray Tune needs beyond Ray is kept apart.
bench: $(STAMP)
	test -d build/peers || $(VENV)/bin/python -m pip install -q --no-deps --target build/peers pyarrow tensorboardX
	PYTHONPATH=$$PWD:$$PWD/build/peers $(RUN) benchmarks/run.py $(NAME)

clean:
	rm -rf $(VENV) build dist *.egg-info
