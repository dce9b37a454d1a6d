"""The same copy as `copy_job` as a pipeline of Beam.

python copy_beam.py <json> <options of the pipeline>
"""

import json
import sys

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from headrace.beam import ReadFromKafka, WriteToKafka
from headrace.kafka import Earliest

if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    servers = {"bootstrap.servers": settings["bootstrap"]}
    read = ReadFromKafka(servers, [settings["source"]], start=Earliest(), output="arrow", columns=("key", "value"))
    write = WriteToKafka(servers, settings["target"], delivery="exactly-once", transactional_id_prefix=settings["commits"])
    pipeline = beam.Pipeline(options=PipelineOptions(sys.argv[2:]))
    _ = pipeline | read | write
    pipeline.run().wait_until_finish()
