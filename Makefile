# The two commands: `make demo` (the main job, end to end) and `make test` (everything that is checked).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

.PHONY: demo test unit lint bench peers interop megatron stores clean

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: lint unit

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# LocalStack gets a virtual environment of its own, because it pins botocore. Tests start many processes, which all
# compile the package where PYTHONDONTWRITEBYTECODE is set, unless that was done before.
unit: $(VENV)/installed
	$(BIN)/python -m compileall -q energon_stream tests
	$(BIN)/python localstack/run.py --install-only
	$(BIN)/python -m pytest -n 2 --dist loadfile

bench: $(VENV)/installed
	$(PIP) -e '.[bench]'
	$(BIN)/python benchmarks/run.py $(BENCH)

# What `make bench` compares with, each in a virtual environment of its own; without them it says so and goes on.
peers:
	PYTHON=$(PYTHON) sh benchmarks/peers.sh

# Both ways with Megatron-Energon 7.4.1, which gets a virtual environment of its own.
interop: $(VENV)/installed
	test -x .venv-energon/bin/python || $(PYTHON) -m venv .venv-energon
	.venv-energon/bin/python -m pip install -q -c constraints.txt torch
	.venv-energon/bin/python -m pip install -q -c constraints.txt 'megatron-energon[s3]==7.4.1'
	$(BIN)/python -m pytest tests/interop -v

# Beside Megatron-Core, and under Megatron-Bridge's data module (without what Bridge needs for models).
megatron: $(VENV)/installed
	test -x .venv-megatron-core/bin/python || $(PYTHON) -m venv .venv-megatron-core
	.venv-megatron-core/bin/python -m pip install -q -c constraints.txt torch
	.venv-megatron-core/bin/python -m pip install -q -c constraints.txt -e . megatron-core==0.16.1
	.venv-megatron-core/bin/python -m pip install -q --no-deps megatron-bridge==0.3.1
	$(BIN)/python -m pytest tests/integrations -v

# Azure's emulator, without which its tests are skipped; it comes from npm.
stores: $(VENV)/installed
	npm install --prefix .venv-stores --no-fund --no-audit azurite@3.35.0
	$(BIN)/python -m pytest tests/storage -v

clean:
	rm -rf $(VENV) .venv-stores .venv-localstack .venv-energon .venv-megatron-core .venv-peers .mypy_cache .ruff_cache .pytest_cache
