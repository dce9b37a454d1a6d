# Everything a fresh machine needs to know is here: python3 (3.11 to 3.13), gcc and Java 17 must be there, the rest is installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is installed: for tests and tools all of it, for the demo what that needs, unless the tests have brought more.
INSTALLED := $(VENV)/.installed
INSTALLED_FOR_DEMO := $(firstword $(wildcard $(INSTALLED)) $(VENV)/.installed-demo)

# The tests of a file share servers; they wait more than they compute.
PYTEST := $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --ignore tests/clusters
# A fixture that hangs has no deadline: the process ends with a traceback of each thread, and its test is reported by name.
BOUNDED := -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true

# Without this Spark starts its Python workers with the first `python3` on the PATH.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python
# Where an image sets it, each of the thousand processes of the tests would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-beam demo-move demo-changes test test-rest test-all test-long lowest lint docs bench bench-typed bench-beam bench-growth bench-restore bench-outage soak soak-tables rest-catalog soak-beam soak-splits soak-files soak-hybrid soak-changes soak-run soak-standby soak-tokens chaos fuzz values mutants requirements clean bench-files bench-changes test-clusters bench-latency bench-cost

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(INSTALLED_FOR_DEMO) ## The flights pipeline on Spark: kills, restores, new partitions, checked by an oracle
	$(BIN)/python examples/flights/demo.py

demo-beam: $(INSTALLED) ## The same through a Beam pipeline on Flink: two kills, a savepoint, new partitions
	$(BIN)/python examples/flights/demo_beam.py

demo-move: $(INSTALLED) ## The flights copied by the JVM connector, headrace run, Spark, Beam on Flink, each from where the last has stopped
	$(BIN)/python examples/flights/demo_move.py

demo-changes: $(INSTALLED) ## A bank's PostgreSQL tables and their changes into Delta tables: three kills in the snapshot, three in the log
	$(BIN)/python examples/changes/demo.py

test: $(INSTALLED) ## The tests of every change, some with a real Kafka, Spark and PostgreSQL (eight minutes)
	$(PYTEST) $(BOUNDED) -m "not full and not long" --ignore tests/values

test-rest: $(INSTALLED) ## What `make test` leaves out of all that CI runs: more of Kafka, Spark, Flink and databases (25 minutes)
	$(PYTEST) $(BOUNDED) -m "full and not long"

test-all: test test-rest ## Everything that CI runs (half an hour)

test-long: $(INSTALLED) ## The tests marked long, which CI leaves out: demos and examples with kills (a quarter of an hour)
	$(PYTEST) --numprocesses 2 -m long

test-clusters: $(INSTALLED) ## Jobs on standalone Spark, YARN and Flink, each server on a host of its own (network namespaces, as root), under faults (20 minutes)
	$(BIN)/pytest -m long tests/clusters

lowest: $(INSTALLED) ## The unit tests with the lowest versions that setup.cfg allows
	$(BIN)/python -m tests.helpers.lowest

lint: $(INSTALLED) ## Style, types, and the import rules between layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p headrace -p pyspark_headrace
	$(BIN)/mypy --explicit-package-bases benchmarks/*.py benchmarks/restore/*.py benchmarks/costs/*.py benchmarks/delay/*.py benchmarks/chaos/*.py benchmarks/chaos/faults/*.py
	$(BIN)/lint-imports
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m tests.helpers.typecheck

docs: $(INSTALLED) ## The documentation site, into site/
	$(BIN)/python -m docs.tools.generate
	$(BIN)/mkdocs build --strict

bench: $(INSTALLED) ## Read throughput alongside Spark's JVM connector (40 minutes; QUICK=1 for minutes)
	$(BIN)/python -m benchmarks.read_throughput

bench-typed: $(INSTALLED) ## Avro and JSON values to typed columns, alongside from_avro, from_json and clients (8 minutes; QUICK=1 for two)
	$(BIN)/python -m benchmarks.typed_read

bench-beam: $(INSTALLED) ## Reads in Beam pipelines, on Direct and Flink (20 minutes; QUICK=1 for minutes)
	$(BIN)/python -m benchmarks.beam_read

bench-files: $(INSTALLED) ## Files alongside pyarrow, Spark's file source and Beam's; new ones among many (20 minutes; QUICK=1 for three)
	$(BIN)/python -m benchmarks.files_read

bench-changes: $(INSTALLED) ## PostgreSQL's changes alongside Debezium's engine and Flink CDC (40 minutes; QUICK=1 for eight)
	$(BIN)/python -m benchmarks.changes

bench-growth: $(INSTALLED) ## What grows while a Beam pipeline reads 100 partitions on Flink (an hour; QUICK=1 for minutes)
	$(BIN)/python -m benchmarks.beam_growth

bench-cost: $(INSTALLED) ## What a copy costs alongside other systems, without data too, and by the number of partitions (two hours; QUICK=1 for ten minutes)
	$(BIN)/python -m benchmarks.cost

bench-restore: $(INSTALLED) ## Kills and restores under load, alongside other systems (hours; QUICK=1 for ten minutes)
	$(BIN)/python -m benchmarks.restore_throughput

bench-latency: $(INSTALLED) ## Delay at 1,000 and 20,000 records/s alongside other systems, through a kill (hours; SECONDS=12 for a quarter of an hour, QUICK=1 for a trial)
	$(BIN)/python -m benchmarks.latency
	$(BIN)/python -m benchmarks.delay.commit

bench-outage: $(INSTALLED) ## Brokers away for ten minutes, restarted one after another, and a fetch quota, under running jobs (25 minutes)
	$(BIN)/python -m benchmarks.quota
	$(BIN)/python -m benchmarks.outage

soak: $(INSTALLED) ## 100,000 new histories of each simulated simulation, and 340 SIGKILLs of exactly-once jobs (an hour)
	$(BIN)/python -m tests.simulation.soak --schedules 100000
	$(BIN)/python -m tests.soak.kill_soak --kills 300 --result benchmarks/results/kill-soak.json
	$(BIN)/python -m tests.soak.kill_soak --engine spark --kills 40 --result benchmarks/results/kill-soak-spark.json

soak-tables: $(INSTALLED) ## 300 SIGKILLs of jobs that write to Delta and Iceberg tables, and of the libraries' own ways; changelogs by key (an hour; continues where it was)
	$(BIN)/python -m benchmarks.tables_soak
	$(BIN)/python -m benchmarks.tables_changes

rest-catalog: $(INSTALLED) ## The Iceberg sink against Iceberg's own REST catalog, stopped during a commit (a minute; downloads 212 MB once)
	$(BIN)/python -m tests.helpers.rest_catalog

soak-beam: $(INSTALLED) ## 50 SIGKILLs of Flink's task manager under a Beam pipeline (15 minutes)
	$(BIN)/python -m tests.soak.beam_soak --kills 50 --result benchmarks/results/beam-kill-soak.json

soak-splits: $(INSTALLED) ## 300 SIGKILLs of Spark's streams over text files that grow and files that come, with speculation (an hour)
	$(BIN)/python -m tests.soak.split_soak --kills 300 --result benchmarks/results/split-soak.json

soak-files: $(INSTALLED) ## 20,000 files into Kafka, Delta and PostgreSQL by Spark, headrace run and Beam on Flink, under 40 SIGKILLs each (an hour)
	$(BIN)/python -m tests.soak.files_soak --kills 40 --result benchmarks/results/files-soak.json

soak-hybrid: $(INSTALLED) ## 30 SIGKILLs each under Spark, headrace run and Beam on Flink, before, in and after the switch from a year of files to a topic (an hour)
	for engine in run spark flink; do $(BIN)/python -m tests.soak.hybrid_soak --engine $$engine --kills 10 --result benchmarks/results/hybrid-soak.json || exit 1; done

soak-changes: $(INSTALLED) ## 5,000,000 changes of 20 PostgreSQL tables into Delta tables by headrace run, under 300 SIGKILLs, the server's too (two hours)
	$(BIN)/python -m tests.soak.changes_soak --kills 300 --changes 5000000 --result benchmarks/results/changes-soak.json

soak-standby: $(INSTALLED) ## 200 takeovers of a Spark job by its standby: kills, stops, broker restarts, added partitions (an hour and a quarter)
	$(BIN)/python -m tests.soak.standby_soak --takeovers 200 --result benchmarks/results/standby-soak.json
	$(BIN)/python -m tests.soak.standby_defaults --result benchmarks/results/standby-defaults.json

soak-tokens: $(INSTALLED) ## Bearer tokens that live for 20 seconds, in scripts and on Spark (ten minutes)
	$(BIN)/python -m tests.soak.token_soak --result benchmarks/results/token-soak.json

soak-run: $(INSTALLED) ## SIGKILLs of workers, coordinators and everything under headrace run, in every phase of a commit (an hour)
	$(BIN)/python -m tests.soak.run_soak --broker fake --kills 1000 --result benchmarks/results/run-kill-soak-dead-letters.json
	$(BIN)/python -m tests.soak.run_soak --broker local --kills 300 --result benchmarks/results/run-kill-soak-dead-letters.json

chaos: $(INSTALLED) ## Faults of brokers, networks, settings, databases and jobs, until each system has had 2,000; continues where it was (days)
	$(BIN)/python -m benchmarks.chaos.run --system embedded
	$(BIN)/python -m benchmarks.chaos.run --system embedded-impatient
	$(BIN)/python -m benchmarks.chaos.run --system embedded-losses
	$(BIN)/python -m benchmarks.chaos.run --system embedded-postgresql
	$(BIN)/python -m benchmarks.chaos.run --system embedded-mariadb
	$(BIN)/python -m benchmarks.chaos.run --system spark
	$(BIN)/python -m benchmarks.chaos.run --system executors
	$(BIN)/python -m benchmarks.chaos.run --system beam
	$(BIN)/python -m benchmarks.chaos.run --system jvm
	$(BIN)/python -m benchmarks.chaos.report

fuzz: $(INSTALLED) ## Fuzzers of everything that reads others' bytes, AddressSanitizer, and 10^8 record batches (hours)
	$(BIN)/pip install --quiet --requirement requirements/fuzz.txt
	$(BIN)/python -m tests.fuzz.run --seconds 300
	$(BIN)/python -m tests.fuzz.sanitized --buffers 1000000
	$(BIN)/python -m tests.fuzz.flood --buffers 100000000 --state build/flood.json
	$(BIN)/python -m tests.fuzz.flood --of avro --buffers 10000000 --state build/flood_avro.json

values: $(INSTALLED) ## Values that sinks and formats lose, change or hide, and what people do next (hours; HEADRACE_VALUES_MINUTES for each search)
	HEADRACE_VALUES_MINUTES=$${HEADRACE_VALUES_MINUTES:-15} $(BIN)/pytest tests/values -m long -k "not bug"

mutants: $(INSTALLED) ## Mutation testing of the modules that decide: no survivor without a reason (hours; continues where it stopped)
	$(BIN)/pip install --quiet --requirement requirements/mutants.txt
	$(BIN)/python -m tests.mutants.run

requirements: $(INSTALLED) ## The newest versions of what the tests run with, into requirements/test.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --upgrade --custom-compile-command 'make requirements' --output-file requirements/test.txt pyproject.toml

$(INSTALLED): EXTRAS := spark,connect,sql,run,demo,beam,docs,dev
$(VENV)/.installed-demo: EXTRAS := spark,demo
$(INSTALLED) $(VENV)/.installed-demo: requirements/test.txt setup.cfg setup.py pyproject.toml connectors/kafka/format/decode.py connectors/kafka/format/encode.py connectors/formats/avro/decode.py connectors/formats/avro/encode.py connectors/postgresql/pgoutput.py
	$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else "headrace needs Python 3.11 to 3.13, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	DIST_EXTRA_CONFIG=$(CURDIR)/requirements/build.cfg $(BIN)/pip install --quiet --no-compile --constraint requirements/test.txt --editable '.[$(EXTRAS)]'
	touch $@

clean: ## Remove .venv and everything built
	rm -rf $(VENV) .venv-lowest build dist site demo-output *.egg-info
