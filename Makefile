# The commands of the project. They install everything into .venv and into ANABRANCH_CACHE (default:
# ~/.cache/anabranch). As root on Debian, `make tools` also installs kcat, faketime, PostgreSQL and Chromium with apt.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
CARGO := $(shell command -v cargo || PATH=$$HOME/.cargo/bin command -v cargo)
PYTEST_ARGS ?=
TEST_WORKERS ?= 4
SUITES_ARGS ?=
BENCH_ARGS ?= --quick
GUARD_ARGS ?=
SEED ?=
SEEDS ?= 100
SIM_ARGS ?=
FUZZ_ARGS ?=

# Tests start hundreds of processes: without stored bytecode, each would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup tools demo demo-cluster check lint types crate test-fast test collected test-python test-lowest coverage test-spark-next suites suites-go suites-node bench guard sim fuzz soak soak-wal docs release clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 26

setup: ## create .venv with all dependencies; quick when nothing has changed
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found; set its path: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) scripts/bootstrap.py

tools: setup ## fetch the programs that tests need: S3 server, OAuth server, Helm, Apache Kafka, Spark's Kafka source, kcat, libfaketime, PostgreSQL, Prometheus, Chromium
	@$(BIN)/python -m scripts.tools

demo: setup ## send real events with a Kafka client, store them as objects, and query them as a table with DuckDB and Spark (fetches Java and jars)
	@$(BIN)/python -m scripts.tools java spark
	@$(BIN)/python -m scripts.demo

demo-cluster: setup ## kill, add and stop nodes of a cluster under real clients, and check every count (needs Go and Maven)
	@$(BIN)/python -m scripts.tools java spark kafka s3 postgres
	@$(BIN)/python -m scripts.demo_cluster

check: lint types crate ## check format, lint, import contracts and types

lint: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo

types: setup
	@$(BIN)/mypy

crate: setup
	@export PATH="$(if $(CARGO),$(dir $(CARGO)):)$$PATH" PYO3_PYTHON="$(abspath $(BIN)/python)"; \
	if $(BIN)/python -c "import anabranch_native" 2>/dev/null && cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1; then \
		cd native && cargo fmt --check && cargo clippy -q -- -D warnings; \
	else echo "the native part is not checked: it is not built, or cargo has no rustfmt or no clippy"; fi

test-fast: setup ## run the tests without a JVM, a server, a browser or a build
	@$(BIN)/pytest -q -n $(TEST_WORKERS) --fast $(PYTEST_ARGS)

test: $(if $(PYTEST_ARGS),setup,tools) ## check everything, and run all tests; PYTEST_ARGS=tests/wal runs a part, and nothing else
	$(if $(PYTEST_ARGS),,@$(MAKE) --no-print-directory -j2 check collected)
	$(BIN)/pytest -q -n $(TEST_WORKERS) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

# Python's code of the tests, which else each worker would make: while types are checked, a processor is idle.
collected: setup
	@$(BIN)/pytest -q --collect-only >/dev/null 2>&1 || true

test-python: setup ## run the tests of test-fast without the native part
	@ANABRANCH_NATIVE=off $(BIN)/pytest -q -n $(TEST_WORKERS) --fast $(PYTEST_ARGS)

test-lowest: setup ## run the tests of the broker for tests, and some of each extra, with the lowest versions that pyproject.toml allows
	@$(BIN)/python -m scripts.tools packaging s3
	@$(BIN)/python -m scripts.lowest $(PYTEST_ARGS)

coverage: tools ## run all tests and measure coverage; fails below fail_under in pyproject.toml
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q $(PYTEST_ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

test-spark-next: tools ## run the Spark tests on Spark 4.2, in a separate environment (docs/spark.md lists what they cover)
	@$(BIN)/python -m scripts.spark_next $(PYTEST_ARGS)

suites: tools ## run client libraries' own integration tests on a node (SUITES_ARGS="--against kafka" to compare)
	@$(BIN)/python -m tests.suites.run $(SUITES_ARGS)

suites-go: tools ## run the tests of clients in Go on nodes; needs Go, and root for their ports
	@for suite in "franz_go --nodes 3" kafka_go sarama; do $(BIN)/python -m tests.suites.$$suite $(SUITES_ARGS) || exit 1; done

suites-node: tools ## run the tests of a client of schema registries in Node.js on a node; needs npm
	@$(BIN)/python -m tests.suites.kafkajs_registry

bench: tools ## run every benchmark, about a minute each (BENCH_ARGS= for the long runs)
	@$(BIN)/python -m scripts.tools fio
	@for file in $$(grep -l __main__ benchmarks/*.py | grep -v guard); do module=$$(basename $$file .py); echo "== $$module"; \
		$(BIN)/python -m benchmarks.$$module $(BENCH_ARGS) || exit 1; done

guard: setup ## check that no hot path costs more than before (GUARD_ARGS=--update stores the costs of this code)
	@$(BIN)/python -m benchmarks.guard $(GUARD_ARGS)

sim: setup ## run the whole system from seeds, under faults (SEEDS=1000), or replay one with its trace (SEED=17)
	@$(BIN)/python -m tests.simulation.run $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(SIM_ARGS)

fuzz: setup ## fuzz each input of strangers and disks for a minute (FUZZ_ARGS="--target batches --seconds 600")
	@$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

docs: setup ## build the documentation as a site in build/site, and check its links
	@$(BIN)/python -m scripts.tools site
	@$$($(BIN)/python -c "from scripts.tools import environment_folder; print(environment_folder('site'))")/bin/mkdocs build --strict

release: setup ## build sdists, wheels, SBOMs and notes in dist/, and try each extra; nothing is published
	@$(BIN)/python -m scripts.tools packaging release
	@$(BIN)/python -m scripts.release

soak: tools ## run the tests for longer, with more random cases and ten minutes of fuzzing for each kind of input
	@$(BIN)/python -m scripts.tools faketime
	HYPOTHESIS_PROFILE=soak ANABRANCH_SOAK=1 ANABRANCH_PROPERTY_EXAMPLES=1000 $(BIN)/pytest -q --timeout 7200 -o faulthandler_timeout=7500 $(PYTEST_ARGS)

soak-wal: setup ## run 20,000 histories of the write-ahead log on a simulated disk
	ANABRANCH_SOAK=1 $(BIN)/pytest -q --timeout 1800 -o faulthandler_timeout=2000 tests/wal/test_histories.py $(PYTEST_ARGS)

clean: ## remove .venv, the caches of linters and tests, and the demo's data
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* demo-data dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
