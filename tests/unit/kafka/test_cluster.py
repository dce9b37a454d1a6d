"""What a cluster keeps with its process: its locks over a fork, and what readers remember of partitions."""

import os
import threading

import pytest

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.topology import Broker
from headrace.connectors.kafka.read.bytes_per_offset import shared_densities
from headrace.enumerator.errors import DeadlineExceededError


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # which is what is tested
def test_a_child_forked_while_a_thread_holds_the_locks_uses_the_cluster():
    with KafkaCluster(ClientConfig(bootstrap="127.0.0.1:1", default_api_timeout_ms=1, retry_backoff_ms=1)) as cluster:
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            parts = cluster._metadata, cluster._coordinators, cluster._pool
            with parts[0]._lock, parts[1]._lock, parts[2]._lock, cluster._retries._closed._cond:
                held.set()
                done.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(30)
        child = os.fork()
        if child == 0:
            threading.Timer(10, os._exit, [3]).start()  # a lock that stays held would hang the child
            try:
                cluster.invalidate("t")
                cluster._coordinators.forget_broker(Broker(1, "broker", 9092))
                cluster.back_off(1)
                with pytest.raises(DeadlineExceededError):
                    cluster.topics(["t"])
                os._exit(0)
            except BaseException:  # noqa: BLE001 - a forked test process must not continue running tests
                os._exit(2)
        done.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_readers_remember_of_partitions_is_shared_by_configuration():
    mine = shared_densities(ClientConfig(bootstrap="densities:1"))
    mine["t", 0] = 12.5
    assert shared_densities(ClientConfig(bootstrap="densities:1")) == {("t", 0): 12.5}
    assert shared_densities(ClientConfig(bootstrap="densities:1", client_rack="a")) == {}
