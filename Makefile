# The loop of a change: make check while working, make test before a commit. `make help` lists all.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv java demo check test sim mutants chaos proof matrix bench proto format clean

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Spark starts its Python workers by name; a version manager's shim costs seconds for each of them,
# so Spark is given the environment's own interpreter. Loopback keeps it off the network.
export PYSPARK_PYTHON := $(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(BIN)/python
export SPARK_LOCAL_IP := 127.0.0.1
export PATH := $(BIN):$(PATH)

# Tests start many processes: without files of compiled modules each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## make .venv with everything a developer needs

$(STAMP): setup.py constraints.txt spark_ledger/version.py
	@real=; for name in "$${PYTHON:-python3.11}" python3.11 python3; do \
	  real=$$("$$name" -c 'import ensurepip, os, sys; \
	    assert sys.version_info >= (3, 11); print(os.path.realpath(sys.executable))' 2>/dev/null) \
	    && break || real=; \
	done; \
	if [ -z "$$real" ]; then \
	  echo "Python 3.11 or newer with venv is needed: apt install python3.11 python3.11-venv" >&2; \
	  exit 1; \
	fi; \
	echo "making .venv with $$real"; \
	"$$real" -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 \
	  -c constraints.txt -e '.[all]'
	@touch $@

java:
	@command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" >/dev/null || { \
	  echo "Java 17 is needed by Spark and ZooKeeper: apt install openjdk-17-jre-headless" >&2; \
	  exit 1; }

check: $(STAMP) ## format, lint, types, style, generated code (under a minute)
	@ruff format --check .
	@ruff check .
	@mypy
	@python -m pytest -q tests/style

test: $(STAMP) java ## what a change must pass: every test, a share of each proof (twelve minutes)
	@python -m pytest -n 2 --no-loadscope-reorder || { \
	  status=$$?; \
	  if [ $$status -ne 1 ]; then exit $$status; fi; \
	  echo "once more, one at a time: what failed while tests shared the machine"; \
	  python -m pytest --last-failed --last-failed-no-failures none; \
	}

sim: $(STAMP) ## simulated schedules full of faults: SCHEDULES=n, or one again: SEED=n
	@python -m tests.sim $(if $(SCHEDULES),--schedules $(SCHEDULES)) $(if $(SEED),--seed $(SEED))

mutants: $(STAMP) ## bugs put in on purpose, each of which has to be found
	@python -m tests.mutants

chaos: $(STAMP) java ## real processes under load and faults: MINUTES=n
	@python -m tests.chaos --minutes $(or $(MINUTES),2)

proof: $(STAMP) java ## the rest of the tests and whole proofs; writes PROOF.md (an hour)
	@python -m tests.proof

matrix: $(STAMP) java ## the connector's tests with each version of Spark, Spark Connect too: ONLY=version
	@python -m tests.spark.matrix $(if $(ONLY),--only $(ONLY))

demo: $(STAMP) java ## real flights through two streams, with faults on the way; prints a report
	@python -m examples.demo

bench: $(STAMP) java ## all benchmarks, with a page of pictures in .bench/performance.md
	@python -m benchmarks all --page .bench/performance.md

proto: $(STAMP) ## generate the code of bookie.proto again
	@python -m tests.style.generated

format: $(STAMP) ## format the sources and apply safe fixes
	@ruff format .
	@ruff check --fix .

clean: ## remove everything that can be made again
	@rm -rf $(VENV) .matrix build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .bench
	@rm -rf .coverage* spark-warehouse metastore_db derby.log artifacts
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
