# Everything a fresh machine needs to know is here: python3 (3.11 to 3.13), gcc and Java 17 must be there, the rest is installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Spark starts its Python workers with `python3` from PATH unless told otherwise: tell it.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python

.PHONY: demo demo-beam test lint bench bench-beam bench-restore soak soak-beam requirements clean

demo: $(INSTALLED) ## The flights pipeline: kills, restores, new partitions, and the oracle's verdict
	$(BIN)/python examples/flights/demo.py

demo-beam: $(INSTALLED) ## The same flights through a Beam pipeline on Flink: two kills, a savepoint, new partitions, and the oracle's verdict
	$(BIN)/python examples/flights/demo_beam.py

test: $(INSTALLED) ## All tests, against a real Kafka and a real Spark
	$(BIN)/pytest

lint: $(INSTALLED) ## Style, types, and which layer may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p headrace -p pyspark_headrace
	$(BIN)/mypy --explicit-package-bases benchmarks/*.py benchmarks/restore/*.py
	$(BIN)/lint-imports

bench: $(INSTALLED) ## Side by side with Spark's JVM connector; results and plots go to benchmarks/results
	$(BIN)/python -m benchmarks.read_throughput

bench-beam: $(INSTALLED) ## Reads in Beam pipelines, beside the others'; about 20 minutes, QUICK=1 for a look
	$(BIN)/python -m benchmarks.beam_read

bench-restore: $(INSTALLED) ## Kills and restores beside the others': 10 kills of each system (hours); QUICK=1 for ten minutes
	$(BIN)/python -m benchmarks.restore_throughput

soak: $(INSTALLED) ## Simulated histories of the heart, many more than in the tests; and 340 kills of exactly-once jobs, 40 of them of Spark's
	$(BIN)/python -m tests.helpers.simulate --histories 200000
	$(BIN)/python -m tests.helpers.kill_soak --kills 300 --result benchmarks/results/kill-soak.json
	$(BIN)/python -m tests.helpers.kill_soak --engine spark --kills 40 --result benchmarks/results/kill-soak-spark.json

soak-beam: $(INSTALLED) ## 50 SIGKILLs of Flink's task manager under a Beam pipeline: state, output, group offsets (15 minutes)
	$(BIN)/python -m tests.helpers.beam_soak --kills 50 --result benchmarks/results/beam-kill-soak.json

requirements: $(INSTALLED) ## The newest versions of what the tests run with, into requirements/test.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --upgrade --custom-compile-command 'make requirements' --output-file requirements/test.txt pyproject.toml

$(INSTALLED): requirements/test.txt setup.cfg setup.py pyproject.toml connectors/kafka/format/decode.py connectors/kafka/format/encode.py
	$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else "headrace needs Python 3.11 to 3.13, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint requirements/test.txt --editable '.[spark,connect,sql,demo,beam,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist demo-output *.egg-info
