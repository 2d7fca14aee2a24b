# The two commands: `make demo` (the main job, end to end) and `make test` (everything that is checked).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Versions that fit each other; constraints.txt has a torch without CUDA, for which no torchvision is published.
TORCHVISION := torch==2.14.1 torchvision==0.29.1
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

# What `make test` leaves out, because it needs environments of its own, or long. Every night runs all of them, with
# the slow tests of what needs an environment, which test-all cannot run.
SUITES := test-all types audit interop convert transforms ray megatron frameworks stores docs first-hour test-floor chaos-short soak
# On a Python without the GIL, which the other suites do not have: make free-threaded PYTHON=python3.14t.
FREE_THREADED := schedule tar index cache read

.PHONY: demo test unit lint bench bench-release peers $(SUITES) suites interop-environment convert-environment chaos free-threaded release-check clean

# What the library needs, and no more.
$(VENV)/core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "energon_stream needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e .
	touch $@

# That, all development tools, and LocalStack, which gets a virtual environment of its own, because it pins botocore.
$(VENV)/installed: $(VENV)/core
	$(PIP) -e '.[dev]'
	$(BIN)/python localstack/run.py --install-only
	touch $@

demo: $(VENV)/core
	$(BIN)/python examples/demo.py

# Side by side: mypy takes half a minute of one core without its cache.
test: $(VENV)/installed
	$(MAKE) --no-print-directory --jobs 2 lint unit

# The same with all of hypothesis' examples, and with the slow tests; it takes an hour.
test-all: $(VENV)/installed
	$(MAKE) --no-print-directory --jobs 2 lint unit PROFILE="--hypothesis-profile nightly -m ''"

# mypy, and pyright on the public interface: the share of it that type checkers of users know, at least 97 %. pyright
# looks for the package on PYTHONPATH, and not behind the import hook of an editable installation.
types: $(VENV)/installed
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/pyright --pythonpath $(BIN)/python --verifytypes energon_stream --ignoreexternal --outputjson \
		| $(BIN)/python -c 'import json, sys; found = json.load(sys.stdin)["typeCompleteness"]["completenessScore"]; \
			print(f"type completeness {found:.1%}"); sys.exit(found < 0.97)'

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/tools/lines.py

# Tests start many processes, which all compile the package where PYTHONDONTWRITEBYTECODE is set, unless that was done
# before. pytest compiles tests in a way of its own, in each process, unless it may keep the result for the next run.
unit: $(VENV)/installed
	$(BIN)/python -m compileall -q energon_stream tests
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 4 --dist worksteal $(PROFILE)

bench: $(VENV)/installed
	$(PIP) -e '.[bench]'
	$(BIN)/python benchmarks/run.py $(BENCH)

# docs/benchmarks/latest.md for a release: all rows and peers in one run of at most 90 minutes, of a commit without changes.
bench-release: BENCH = --release
bench-release: peers bench

# Training while everything fails: faults of the network, kills, replaced objects, damaged caches; attacks for 15 minutes.
# Then kills alone: of training, of what writes datasets, and of conversions.
# CHAOS="--samples 100000 --seed 7" changes the first.
chaos: $(VENV)/installed
	$(BIN)/python tests/chaos/run.py $(CHAOS)
	$(BIN)/python tests/chaos/kills.py
	$(BIN)/python tests/kills/run.py --kills 50
	$(BIN)/python tests/kills/convert.py --kills 50

chaos-short: CHAOS = --samples 20000 --seconds 300 --seed 1
chaos-short: chaos

# All suites, one after another, also after one that failed; each ends with the tests that it did not run, by reason.
suites:
	$(MAKE) --keep-going $(SUITES)

# 200 epochs, after which memory, threads and descriptors must be those of the start.
soak: $(VENV)/installed
	$(BIN)/python tests/chaos/soak.py

# What `make bench` compares with, each in a virtual environment of its own; without them it says so and goes on.
peers:
	PYTHON=$(PYTHON) sh benchmarks/peers.sh

# Both ways with Megatron-Energon 7.4.1, which gets a virtual environment of its own: with PyAV, with torchvision and
# the torch that fits it, and with this library, whose transforms need them as well.
interop: $(VENV)/installed interop-environment
	$(BIN)/python -m pytest -m '' tests/interop tests/integrations/test_programs.py tests/integrations/test_addresses.py -v

interop-environment:
	test -x .venv-energon/bin/python || $(PYTHON) -m venv .venv-energon
	.venv-energon/bin/python -m pip install -q --disable-pip-version-check $(TORCHVISION)
	.venv-energon/bin/python -m pip install -q --disable-pip-version-check $(TORCHVISION) 'megatron-energon[s3,av-decode,transforms]==7.4.1'
	.venv-energon/bin/python -m pip install -q --disable-pip-version-check $(TORCHVISION) -e .

# Known vulnerabilities of what is installed. pip-audit passes over packages whose advisories it does not get, as from a
# mirror of PyPI, which is a failure here. A PyTorch without CUDA has a version that PyPI does not know.
audit: $(VENV)/installed
	$(BIN)/python -m pip_audit --skip-editable --progress-spinner off --format json \
		| $(BIN)/python -c 'import json, sys; found = json.load(sys.stdin)["dependencies"]; unknown = {"energon-stream", "torch"}; \
			bad = [each for each in found if each.get("vulns") or "skip_reason" in each and each["name"] not in unknown]; \
			print(*bad, f"{len(bad)} of {len(found)} packages are vulnerable, or could not be audited", sep="\n"); sys.exit(bool(bad))'

# The lowest supported versions of the dependencies, without the frameworks' loops, which need newer ones.
FLOOR_WITHOUT = tests/integrations energon_stream/integrations docs/frameworks docs/recipes
test-floor:
	test -x .venv-floor/bin/python || $(PYTHON) -m venv .venv-floor
	.venv-floor/bin/python -m pip install -q --disable-pip-version-check -c constraints-floor.txt -e '.[test,test-stores]'
	.venv-floor/bin/python -m pytest -n 2 $(FLOOR_WITHOUT:%=--ignore %)
	@echo 'not run: $(FLOOR_WITHOUT), which need packages that the floor does not have'

# Beside Megatron-Core, and under Megatron-Bridge's data module (without what Bridge needs for models): the last
# versions for Python 3.11, and the newest, which need Python 3.12.
PYTHON_3_12 ?= python3.12
megatron: $(VENV)/installed
	test -x .venv-megatron-core/bin/python || $(PYTHON) -m venv .venv-megatron-core
	.venv-megatron-core/bin/python -m pip install -q -c constraints.txt torch
	.venv-megatron-core/bin/python -m pip install -q -c constraints.txt -e . megatron-core==0.16.1
	.venv-megatron-core/bin/python -m pip install -q --no-deps megatron-bridge==0.3.1
	$(BIN)/python -m pytest -m '' tests/integrations -v
	@if ! $(PYTHON_3_12) -c '' 2> /dev/null; then \
		echo 'not run: megatron-core 0.19.2 and megatron-bridge 0.6.2, for want of $(PYTHON_3_12)'; \
	else set -ex; \
		test -x .venv-megatron-3.12/bin/python || $(PYTHON_3_12) -m venv .venv-megatron-3.12; \
		.venv-megatron-3.12/bin/python -m pip install -q -c constraints.txt -e . megatron-core==0.19.2; \
		.venv-megatron-3.12/bin/python -m pip install -q --no-deps megatron-bridge==0.6.2; \
		ENERGON_STREAM_MEGATRON_PYTHON=$$PWD/.venv-megatron-3.12/bin/python \
			$(BIN)/python -m pytest -m '' tests/integrations/test_megatron_core.py tests/integrations/test_bridge_elastic.py -v; \
	fi

# Trainers that no other suite has. torchtitan and NeMo Automodel import triton, also where there is no GPU; and not
# all that Automodel needs can be installed there.
FRAMEWORKS = torchtitan automodel torchft
frameworks:
	test -x .venv-frameworks/bin/python || $(PYTHON) -m venv .venv-frameworks
	.venv-frameworks/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	.venv-frameworks/bin/python -m pip install -q --disable-pip-version-check --no-deps 'triton<3.8'
	.venv-frameworks/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0 torchdata torchtitan==0.3.0 \
		torchft==0.2.0 transformers==5.18.0 torchao==0.18.0 'fsspec<=2026.2.0' -e . pytest pytest-timeout pytest-xdist sybil hypothesis
	.venv-frameworks/bin/python -m pip install -q --disable-pip-version-check --no-deps nemo-automodel==0.7.0
	OMP_NUM_THREADS=1 .venv-frameworks/bin/python -m pytest -m '' --timeout 3600 -v $(FRAMEWORKS:%=tests/integrations/test_%.py) \
		$(FRAMEWORKS:%=docs/frameworks/%.md)
	test -x .venv-verl/bin/python || $(PYTHON) -m venv .venv-verl
	.venv-verl/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0 verl==0.9.1 cachetools fastapi -e '.[test]'
	.venv-verl/bin/python -m pytest -m '' --timeout 3600 tests/integrations/test_verl.py -v

# The transforms and the image decoders beside torchvision, which fits one version of torch alone.
transforms: interop-environment
	test -x .venv-transforms/bin/python || $(PYTHON) -m venv .venv-transforms
	.venv-transforms/bin/python -m pip install -q --disable-pip-version-check $(TORCHVISION)
	.venv-transforms/bin/python -m pip install -q --disable-pip-version-check -e '.[test]'
	.venv-transforms/bin/python -m pytest -m '' -n 2 tests/transforms tests/interop/test_transforms_interop.py tests/decode/test_image_backends.py docs/guides/images.md energon_stream/transforms

# Two nodes of Ray on this machine, one of which is killed. Ray is heavy, so it has an environment of its own.
ray:
	test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install -q -c constraints.txt torch
	.venv-ray/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test,ray]'
	.venv-ray/bin/python -m pytest -m '' --timeout 3600 tests/engine

# Conversions from the formats whose packages pin what the library must not pin; equal there and in 7.4.1.
convert: convert-environment interop-environment
	.venv-convert/bin/python -m pytest -m '' tests/convert tests/interop/test_convert_interop.py docs/guides/convert.md docs/migration/litdata.md docs/migration/mosaicml-streaming.md -v

convert-environment:
	test -x .venv-convert/bin/python || $(PYTHON) -m venv .venv-convert
	.venv-convert/bin/python -m pip install -q --disable-pip-version-check $(TORCHVISION)
	.venv-convert/bin/python -m pip install -q --disable-pip-version-check $(TORCHVISION) -e '.[test,parquet,huggingface,mds,litdata]'

# The site of the documentation, in .site/html: a warning, or a link that leads nowhere, is an error.
docs:
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install -q --disable-pip-version-check -r docs/tools/requirements.txt
	.venv-docs/bin/python docs/tools/build_site.py

# The first hour of three users, with the commands of the documents: minutes and commands to the first batch, to a
# resumed run, to S3. FIRST_HOUR= makes an empty environment first, and counts what installing takes. The user of MDS
# works in the environment of make convert.
FIRST_HOUR = --venv $(VENV) --mds-venv .venv-convert
first-hour: $(VENV)/installed convert-environment
	$(BIN)/python docs/tools/first_weeks.py $(FIRST_HOUR)

# The rooms below PyTorch without the GIL; an extension that does not declare itself safe would switch it on again.
free-threaded:
	test -x .venv-free-threaded/bin/python || $(PYTHON) -m venv .venv-free-threaded
	.venv-free-threaded/bin/python -m pip install -q --disable-pip-version-check -e . pyarrow pytest pytest-timeout \
		pytest-xdist hypothesis sybil
	PYTHON_GIL=0 .venv-free-threaded/bin/python -c 'import sys; sys.exit(sys._is_gil_enabled())'
	PYTHON_GIL=0 .venv-free-threaded/bin/python -m pytest -n 2 $(FREE_THREADED:%=tests/%)

# Azure's emulator, without which its tests are skipped; it comes from npm.
stores: $(VENV)/installed
	npm install --prefix .venv-stores --no-fund --no-audit azurite@3.35.0
	$(BIN)/python -m pytest -m '' tests/storage -v

# Builds the archives of a release in dist/, checks them, and runs the demo and a smoke test from the wheel, in an
# environment that has nothing else. RELEASE="--tag v0.2.0" compares the version with a tag.
release-check:
	rm -rf dist .venv-release
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install -q --disable-pip-version-check build twine
	.venv-release/bin/python -m build -q -o dist .
	.venv-release/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt hatchling dist/*.whl
	.venv-release/bin/python -m build -q --wheel --no-isolation -o dist packages/energon-stream-megatron
	.venv-release/bin/python -m twine check --strict dist/*
	$(PYTHON) docs/tools/release_check.py dist $(RELEASE)

clean:
	rm -rf $(VENV) .venv-stores .venv-localstack .venv-energon .venv-megatron-core .venv-megatron-3.12 .venv-peers .venv-floor .venv-transforms .venv-ray .venv-frameworks .venv-verl .venv-convert .venv-docs .venv-release .site dist .mypy_cache .ruff_cache .pytest_cache
