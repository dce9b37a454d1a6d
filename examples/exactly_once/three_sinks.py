"""One topic to Kafka, MariaDB and PostgreSQL at once, by a job that is killed in every phase of its commits.

    python examples/exactly_once/three_sinks.py [--mariadb URL --postgresql URL] [--kill PHASE]...

Each batch goes to a topic, then to a table in MariaDB, then to one in PostgreSQL. PostgreSQL has to have prepared transactions
(max_prepared_transactions). Without addresses, throwaway servers are started (`headrace/testing/servers/databases.py`).
Without --kill it is killed in all phases, which are listed below.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sqlalchemy as sa
from experiment import CHECKOUT, ExperimentError, Job, Kafka, Reader, check, kafka_and_scratch, say, wait_until

from headrace.connectors.sql.url import driver_engine
from headrace.testing.servers.databases import mariadb, postgresql

SERVERS = {"mariadb": mariadb, "postgresql": postgresql}
RECORDS, PARTITIONS, BATCH = 240, 2, 80
KAFKA, SQL, SPARK = "headrace.connectors.kafka.write.sink", "headrace.connectors.sql.sink", "headrace.runners.spark.writers"
PHASES = {
    "before the first task has prepared": (KAFKA, "KafkaTransaction", "prepare", "before", 1),
    "when a task has prepared": (SQL, "SqlTransaction", "prepare", "after", 1),
    "when the list of a batch's transactions is durable": (KAFKA, "KafkaCommitter", "record", "after", 1),
    "in the recovery from that": (KAFKA, "KafkaCommitter", "end", "before", 1),
    "between two commits": (SQL, "SqlCommitter", "end", "after", 1),
    "after the last commit of a batch, before Spark has noted it": (SPARK, "BatchWriter", "commit", "after", 3),
}
"""Module, class, method, before or after it, and which of its calls in a process."""


class Table:
    """A table for this experiment, and what is in it."""

    def __init__(self, name: str, url: str) -> None:
        """`name` is the database's, for the reports."""
        self.name, self.url = name, url
        self.table = f"three_sinks_{uuid.uuid4().hex[:8]}"
        self._engine = sa.create_engine(driver_engine(url, 30).url, isolation_level="AUTOCOMMIT")
        self._execute(f"CREATE TABLE {self.table} (value VARCHAR(20))")

    def values(self) -> Counter[int]:
        """Every value, counted."""
        return Counter(int(value) for (value,) in self._execute(f"SELECT value FROM {self.table}"))  # noqa: S608 - our own name

    def prepared(self) -> int:
        """How many transactions of headrace are prepared and neither committed nor rolled back."""
        if self._engine.dialect.name == "postgresql":
            return len(self._execute("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'headrace%%'"))
        return sum(bytes(row[3]).startswith(b"headrace") for row in self._execute("XA RECOVER"))

    def drop(self) -> None:
        """Leave nothing behind."""
        self._execute(f"DROP TABLE {self.table}")
        self._engine.dispose()

    def _execute(self, statement: str) -> Sequence[sa.Row[tuple[object, ...]]]:
        with self._engine.connect() as connection:
            result = connection.exec_driver_sql(statement)
            return result.all() if result.returns_rows else []


@contextmanager
def tables(urls: Mapping[str, str | None]) -> Iterator[list[Table]]:
    """A table in each database; one whose address is not given is started."""
    with ExitStack() as stack:
        found = []
        for name, url in urls.items():
            found.append(Table(name, url or stack.enter_context(throwaway(name))))
            stack.callback(found[-1].drop)
        yield found


@contextmanager
def throwaway(name: str) -> Iterator[str]:
    """A database's address."""
    with SERVERS[name]() as database:
        yield database.url


def injected(phase: str, mark: Path) -> dict[str, str]:
    """The environment in which the job is killed in this phase."""
    names = ("module", "owner", "method", "when", "nth")
    kill = {**dict(zip(names, PHASES[phase], strict=True)), "mark": str(mark)}
    return {"HEADRACE_KILL": json.dumps(kill), "PYTHONPATH": str(CHECKOUT / "tests" / "faults" / "kill")}


def experiment(kafka: Kafka, scratch: Path, databases: Sequence[Table], phases: Sequence[str]) -> None:
    """Kill the job in each of the phases. Raises ExperimentError if it comes out otherwise than it should."""
    source, output = kafka.topic("three-in", PARTITIONS), kafka.topic("three-out")
    kafka.send(source, range(RECORDS), PARTITIONS)
    kafka.topics.append(f"{output}-commits")
    bootstrap = {"kafka.bootstrap.servers": kafka.bootstrap}
    # minPartitions: so few records would share a task
    read = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH), "minPartitions": str(PARTITIONS)}
    to_databases = [{"connector": "sql", "url": table.url, "dbtable": table.table} for table in databases]
    arguments = {
        "read": {**bootstrap, "subscribe": source, **read},
        "writes": [{**bootstrap, "topic": output, "commitTopic": f"{output}-commits"}, *to_databases],
        "checkpoint": str(scratch / "checkpoint"),
    }
    for number, phase in enumerate(phases):
        mark = scratch / f"killed-{number}"
        with Job("three_sinks_job.py", scratch, arguments, **injected(phase, mark)) as job:
            job.wait()
        check(mark.exists(), f"killed {phase}")
    with Job("three_sinks_job.py", scratch, arguments) as job:
        say("the job is started again, and finishes")
        job.finish()
    wanted = Counter(range(RECORDS))
    with Reader(kafka.bootstrap, output, "read_committed") as committed:
        wait_until("the last commit to be seen", lambda: len(committed.seen) == RECORDS)
        check(committed.seen == wanted, f"the topic has each of {RECORDS} records once")
    for table in databases:
        check(table.values() == wanted, f"{table.name} has each of {RECORDS} records once")
        check(not table.prepared(), f"nothing is left prepared in {table.name}")


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mariadb", help="mariadb://user:password@host:port/database")
    parser.add_argument("--postgresql", help="postgresql://user:password@host:port/database")
    parser.add_argument("--kill", metavar="PHASE", action="append", choices=PHASES, help="may be repeated; default: all")
    options = parser.parse_args()
    urls = {"mariadb": options.mariadb, "postgresql": options.postgresql}
    with kafka_and_scratch() as (kafka, scratch), tables(urls) as databases:
        try:
            experiment(kafka, scratch, databases, options.kill or list(PHASES))
        except ExperimentError as error:
            say(f"FAILED: {error}")
            return 1
    say("three_sinks: each record once in each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
