"""Jobs on a standalone cluster of Spark: master, workers, brokers and driver each on a host of its own."""

import pytest

from tests.clusters.jobs import BAKED, START_S, Copy
from tests.clusters.servers import Standalone

pytestmark = pytest.mark.timeout(900)
EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.fixture(scope="module")
def spark(rack):
    return Standalone(rack, 2, **BAKED)


def test_a_worker_that_is_cut_off_from_the_brokers_loses_and_repeats_nothing(rack, brokers, spark):
    driver = rack.host("driver")
    with Copy(rack, brokers) as copy:
        job = copy.submit(driver, "--master", spark.url, **BAKED)
        copy.advance(job.check, START_S)
        for broker in brokers.hosts:
            rack.cut(spark.workers[0], broker)
        copy.advance(job.check)
        copy.check(job.check)
