# Needs Python 3.11 or newer and make; everything else goes into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

# The extra that fits this machine: by the newest CUDA that its driver supports, or the simulator's.
CUDA  := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA[^:]*Version: *\([0-9]*\).*/\1/p' | head -1)
EXTRA := $(if $(CUDA),$(if $(filter 12,$(CUDA)),cu12,cu13),numba)

# Tests share out the processors where they do not have to share a GPU. There a broken variant may lose the CUDA
# context, which costs the suites a process.
PARALLEL := $(if $(CUDA),,-n auto)

# Byte code is kept: tests start hundreds of processes, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: benchmark test test-oldest test-triton test-neighbours check lint docs browser evidence dist clean

## benchmark: install what fits this machine and run the suites
benchmark: $(VENV)/.$(EXTRA)
	$(PYTEST) suites --gpu-benchmark $(ARGS)

## test: install the development tools and run all tests, the suites in the simulator among them
test: $(VENV)/.dev
	$(PYTEST) tests $(PARALLEL) $(ARGS)
	$(PYTEST) suites --gpukern-simulator=auto -q $(or $(PARALLEL),--gpukern-isolate=on) $(ARGS)

# The oldest releases of these that pyproject.toml admits, as pip names them.
OLD := pytest|pytest-xdist|pytest-benchmark|numpy
OLDEST = $(shell sed -nE 's/^ *"($(OLD))>=([0-9.]+)",?.*/\1==\2/p' pyproject.toml)

## test-oldest: run the tests with the oldest neighbours that are admitted; before a release
test-oldest:
	$(MAKE) VENV=.venv-oldest .venv-oldest/.dev
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check $(OLDEST)
	.venv-oldest/bin/python -m pytest tests/unit tests/plugin $(PARALLEL) $(ARGS)

## test-triton: run the tests that need Triton and PyTorch, which are several GB
test-triton:
	$(MAKE) VENV=.venv-triton .venv-triton/.dev,triton
	.venv-triton/bin/python -m pytest tests/plugin/test_triton.py tests/plugin/test_code_triton.py tests/plugin/test_docs.py::test_what_is_shown_is_what_is_printed $(ARGS)
	.venv-triton/bin/python -m pytest suites/softmax suites/layer_norm --gpukern-simulator=auto -q $(ARGS)

## test-neighbours: run STUMPY's GPU tests in our simulator and in numba-cuda's; ten minutes
test-neighbours:
	$(MAKE) VENV=.venv-neighbours .venv-neighbours/.numba
	.venv-neighbours/bin/python -m pip install --quiet --disable-pip-version-check pandas scipy
	.venv-neighbours/bin/python tests/neighbours.py

## evidence: make the figures of docs/explanation/evidence-log.md that need no GPU; twenty minutes
evidence: $(VENV)/.dev
	$(BIN)/python docs/evidence/gate_simulation.py
	$(BIN)/python docs/evidence/gate_on_gpu.py judge
	$(BIN)/python docs/evidence/fleet_simulation.py
	$(BIN)/python docs/evidence/busy_host.py replay tests/data/busy-host.json

## browser: install the Chromium in which tests open HTML reports; as root, on Debian or Ubuntu
browser:
	command -v chromium || { apt-get update -qq && apt-get install -qq --no-install-recommends chromium; }

## check: what a change must pass
check: $(VENV)/.dev
	$(MAKE) --jobs=2 --output-sync lint docs
	$(MAKE) test

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

## docs: build the site into docs/_build; a warning fails
docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -q -n -W --keep-going docs docs/_build

# The extras that the wheel is tried with, an environment each. The others are several GB, or need a GPU or CUDA's headers.
TRIED ?= $(EXTRA) $(EXTRA),dask $(EXTRA),fleet code

## dist: build wheel and source distribution into dist, check both, and try the wheel as a user does; before a release
dist:
	$(PYTHON) -m venv --clear .venv-dist
	.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check build twine
	rm -rf dist
	.venv-dist/bin/python -m build
	.venv-dist/bin/twine check --strict dist/*
	set -e; wheel=$$(echo $$PWD/dist/*.whl); bin=$$PWD/.venv-dist/bin; for extras in $(TRIED); do \
		echo "== pytest-gpukern[$$extras]"; \
		$(PYTHON) -m venv --clear .venv-dist; \
		$$bin/python -m pip install --quiet --disable-pip-version-check "$$wheel[$$extras]"; \
		project=$$(mktemp -d); \
		(cd $$project && $$bin/gpukern init && $$bin/pytest -q && \
			$$bin/gpukern validate -q --gpukern-simulator=auto --gpukern-size=smoke $(ARGS)); \
		rm -rf $$project; \
	done

clean:
	rm -rf $(VENV) .venv-oldest .venv-triton .venv-neighbours .venv-dist docs/_build build dist *.egg-info

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

$(VENV)/.%: EXTRAS = $*
$(VENV)/.dev: EXTRAS = dev,$(EXTRA)
$(VENV)/.%: pyproject.toml $(VENV)/.python$(VERSION)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[$(EXTRAS)]'
	touch $@

# An environment is of one Python: with another one it is made anew, and so is what was installed.
$(VENV)/.python$(VERSION):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv --clear $(VENV)
	touch $@
