"""A Flink cluster on this machine for Beam's portable runner: `with start_flink() as flink: ... flink.options() ...`.

Flink and Beam's job server come from Maven Central, once; the workers are of the Python that runs us.
"""

from headrace.testing.servers.flink.rest import FlinkCheckpoint, JobView
from headrace.testing.servers.flink.servers import FlinkCluster
from headrace.testing.servers.flink.start import start_flink

__all__ = ["FlinkCheckpoint", "FlinkCluster", "JobView", "start_flink"]
