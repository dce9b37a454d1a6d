"""`headrace run` between hosts: brokers, PostgreSQL, an S3 with the checkpoints, and each run on its own host.

One run fills a table, another one copies the table's changes into a topic: what comes out has passed through both.
"""

import json
import sys
from contextlib import suppress
from pathlib import Path

import boto3
import pytest

from tests.clusters.jobs import BAKED, START_S, Copy
from tests.clusters.rack import listening
from tests.clusters.relay_job import TABLE
from tests.helpers.databases import initdb_of, psql
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.timeout(1800)
RELAY = Path(__file__).with_name("relay_job.py")
PIPELINES = ("store", "load")
BUCKET, STORE_PORT = "checkpoints", 9000
STALL_S = 10.0
SERVE = """
import sys, time
from tests.helpers.databases import logical_postgresql
with logical_postgresql("oldest", *sys.argv[1:]) as database:
    print(database.url, flush=True)
    time.sleep(1e6)
"""
LOGIN = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
IMPATIENT = {"AWS_MAX_ATTEMPTS": "1", "FSSPEC_S3": json.dumps({"config_kwargs": {"connect_timeout": 2, "read_timeout": 5}})}
"""Of the store's client, which waits for minutes by default."""


@pytest.fixture(scope="module")
def database(rack):
    """Its host and its URL."""
    initdb_of("oldest")  # or the tests are skipped
    host = rack.host("database")
    (host.folder / "pg_hba.conf").write_text("host all all all scram-sha-256\n")
    options = ("-c", "listen_addresses=*", "-c", "hba_file=/tmp/pg_hba.conf")
    server = host.start("database", sys.executable, "-c", SERVE, *options, PYTHONPATH=BAKED["PYTHONPATH"])
    urls = eventually(lambda: [line for line in server.text().splitlines() if "://" in line], check=server.check)
    url = urls[0].replace("127.0.0.1", host.address)
    psql(url, f"CREATE TABLE {TABLE} (number bigint PRIMARY KEY)", f"CREATE PUBLICATION {TABLE} FOR TABLE {TABLE}")
    return host, url


@pytest.fixture(scope="module")
def store(rack):
    """The host of the checkpoints, and the variables by which runs find it."""
    host = rack.host("store")
    server = host.start("store", sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(STORE_PORT))
    address = f"http://{listening(host, STORE_PORT, server)}"
    names = dict(zip(("aws_access_key_id", "aws_secret_access_key", "region_name"), LOGIN.values(), strict=True))
    boto3.client("s3", endpoint_url=address, **names).create_bucket(Bucket=BUCKET)
    return host, {**LOGIN, **IMPATIENT, "AWS_ENDPOINT_URL": address}


class Relay:
    """Runs of both pipelines, each on its own host; the last ones count."""

    def __init__(self, rack, copy, variables):
        self._rack, self._copy, self._variables = rack, copy, variables
        self.runs = []

    def start(self, group):
        self.runs = [self._started(pipeline, self._rack.host(f"{pipeline}-{group}")) for pipeline in PIPELINES]
        self._copy.advance(self._check, START_S)

    def _started(self, pipeline, host):
        words = ("run", f"{RELAY}:{pipeline}", "--workers", "2", "--checkpoints", f"s3://{BUCKET}/{self._copy.name}/{pipeline}")
        main = (sys.executable, "-c", "from headrace.cli import main; main()")
        often = ("--config", "execution.checkpointing.interval=1s")
        return host.start("run", *main, *words, *often, **self._variables, RELAY=self._copy.request, **BAKED)

    def survives(self):
        self._copy.survives(self._check)

    def stalls(self):
        """Until nothing comes out for some seconds."""
        with suppress(TimeoutError):
            while True:
                self._copy.advance(self._check, STALL_S)

    def _check(self):
        for run in self.runs:
            run.check()


@pytest.fixture(scope="module")
def relay(rack, brokers, database, store):
    with Copy(rack, brokers, database=database[1]) as copy:
        relay = Relay(rack, copy, store[1])
        relay.start("a")
        yield relay


def test_runs_are_cut_off_from_the_database(rack, database, relay):
    for run in relay.runs:
        rack.cut(run.host, database[0])
    relay.stalls()
    for run in relay.runs:
        rack.repair(run.host, database[0])
    relay.survives()


def test_runs_that_are_cut_off_from_their_checkpoints_alone_are_replaced_on_other_hosts(rack, store, relay):
    earlier = relay.runs
    for run in earlier:
        rack.cut(run.host, store[0])
    relay.start("b")
    for run in earlier:
        rack.repair(run.host, store[0])
    assert all(run.wait(START_S) for run in earlier)
    assert ["these checkpoints were claimed by process" in run.text() for run in earlier] == [True, True]
    relay.survives()


def test_the_hosts_of_runs_are_lost(relay):
    for run in relay.runs:
        run.host.lose()
    relay.start("c")
    relay.survives()
