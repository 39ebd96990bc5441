PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TESTED := core plugins tests examples
DISTRIBUTIONS := core $(sort $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml)))

# Tests start hundreds of processes, each of which would compile all modules anew where it may not keep them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo bench test check format wheels

help: ## what there is to make
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/'

setup: $(VENV)/installed ## a .venv with the core, every plugin and the development tools

# One build environment for all distributions, and compiling modules with all cores, take 41 s where pip alone took 68.
# Modules that this Python cannot compile (a dependency's for other versions) are skipped.
$(VENV)/installed: pyproject.toml core/pyproject.toml $(wildcard plugins/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name yours: make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1" "hatchling>=1.25" editables
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-compile \
		$(foreach d,$(DISTRIBUTIONS),-e $(d)) --group dev
	-@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib core/src $(wildcard plugins/*/src)
	@touch $@

wheels: setup ## a wheel of every distribution, in dist/
	for d in $(DISTRIBUTIONS); do $(BIN)/python -m build --wheel --no-isolation --outdir dist $$d || exit; done

demo: setup ## train a small LeNet on 1,797 scanned digits: composition, progress, snapshot, curve
	$(BIN)/demitasse train examples/digits/digits_solver.prototxt --json out/digits.json
	$(BIN)/demitasse curve out/digits.json -o out/digits.png

bench: setup .venv-bench/installed ## training and inference beside PyTorch and TensorFlow; ARGS for options
	$(BIN)/python tools/bench --peers-python .venv-bench/bin/python \
		--json out/bench.json --picture out/bench.png $(ARGS)

.venv-bench/installed:
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet torch==2.13.0 tensorflow-cpu==2.21.0 numpy
	@touch $@

# Threads of two processes that wait for each other on the same cores take many times as long: what computes with all
# cores comes last and alone. Of three files at a time one waits for its processes while two cores compute. What fails
# beside other tests is run once more alone, and must pass there.
test: setup ## the tests of every package: three files at a time with a thread each, then those with all cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile -m "not slow and not all_cores" || \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none
	$(BIN)/python -m pytest -m "not slow and all_cores" $$(grep -rl --include='test_*.py' mark.all_cores $(TESTED))

check: setup ## format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy core/src $(wildcard plugins/*/src)
	$(BIN)/lint-imports

format: setup ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
