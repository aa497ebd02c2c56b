# The commands of the project. Everything they install goes into .venv and into ANABRANCH_CACHE
# (default: ~/.cache/anabranch); as root on Debian, `make tools` also takes kcat and PostgreSQL from apt.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
CHECKED := broker protocol s3stream wal compaction spark tests scripts benchmarks
PYTEST_ARGS ?=
SUITES_ARGS ?=
BENCH_ARGS ?= --quick

.DEFAULT_GOAL := help
.PHONY: help setup tools demo test coverage test-spark-next suites bench soak soak-wal clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 26

setup: ## make .venv with everything; quick when nothing changed
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) scripts/bootstrap.py

tools: setup ## fetch the programs that tests need: S3 server, Apache Kafka, Spark's Kafka source, kcat, PostgreSQL
	@$(BIN)/python -m scripts.tools

demo: setup ## real events from a Kafka client through the broker into objects, and out through Spark
	@$(BIN)/python -m scripts.tools java spark
	@$(BIN)/python -m scripts.demo

test: tools ## format, lint, types, import contracts and all tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy -p scripts -p benchmarks
	$(BIN)/lint-imports
	$(BIN)/pytest -q $(PYTEST_ARGS)

coverage: tools ## all tests under coverage, with a floor (fail_under in pyproject.toml)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q $(PYTEST_ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

test-spark-next: tools ## the Spark tests on Spark 4.2, in an environment of its own (docs/spark.md says what that covers)
	@$(BIN)/python -m scripts.spark_next $(PYTEST_ARGS)

suites: tools ## client libraries' own integration tests against a node (SUITES_ARGS="--against kafka" to compare)
	@$(BIN)/python -m tests.suites.run $(SUITES_ARGS)

bench: tools ## every benchmark, about a minute each (BENCH_ARGS= for the long runs)
	@$(BIN)/python -m scripts.tools fio
	@for file in $$(grep -l __main__ benchmarks/*.py); do module=$$(basename $$file .py); echo "== $$module"; \
		$(BIN)/python -m benchmarks.$$module $(BENCH_ARGS) || exit 1; done

soak: tools ## the randomised tests for longer
	HYPOTHESIS_PROFILE=soak ANABRANCH_SOAK=1 ANABRANCH_PROPERTY_EXAMPLES=1000 $(BIN)/pytest -q --timeout 7200 $(PYTEST_ARGS)

soak-wal: setup ## 20,000 histories of the write-ahead log on a simulated disk
	ANABRANCH_SOAK=1 $(BIN)/pytest -q --timeout 1800 tests/wal/test_histories.py $(PYTEST_ARGS)

clean: ## remove .venv, caches of the tools, and what the demo left
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* demo-data
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
