# make demo    the whole loop on this machine: calibrate, forecast, train, compare      make test    the whole suite
# make check   lint, types, import contract         make soak    thousands of random draws       make bench   benchmarks
#
# The first call creates .venv and installs into it; later calls install again only when pyproject.toml changed.
# PYTHON chooses the interpreter (3.11 or newer); TORCH pins what the tests were recorded with.

PYTHON ?= python3
TORCH ?= torch==2.13.0
NUMPY ?= "numpy<2.4"
TRITON ?= triton==3.6.0
DEMO ?= demo
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

.PHONY: demo test check soak bench install clean
.DEFAULT_GOAL := help
# What one process compiled, the ranks and commands that the tests start read.
unexport PYTHONDONTWRITEBYTECODE

help:
	@sed -n '1,2s/^# //p' Makefile

install: $(READY)

# torch first: a CUDA build brings the triton it needs, a CPU build brings none and gets the pinned one for the interpreter tests.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Windtunnel needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) -V 2>&1`. Try make PYTHON=python3.12"; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { echo "could not create $(VENV); on Debian: apt install python3-venv"; exit 2; }
	@echo "installing into $(VENV) (a few minutes, once)"
	@$(PIP) install $(TORCH) $(NUMPY)
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) install $(TRITON)
	@$(PIP) install -e '.[train,report,dev]' $(TORCH) $(NUMPY)
	@touch $(READY)

demo: $(READY)
	@$(BIN)/windtunnel $(DEMO)

test: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(READY)
	@$(BIN)/ruff check --output-format concise .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# Tests marked `soak` or `scaled` alone (tests/soak.py): at most 60 minutes on 2 cores. The last line counts what was drawn.
soak: $(READY)
	@OMP_NUM_THREADS=1 WINDTUNNEL_SOAK=1 $(BIN)/python -m pytest -m '(soak or scaled) and not gpu' -n $(WORKERS) --timeout 1800

bench: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/benchmarks --benchmark-enable --benchmark-only --timeout 600

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
