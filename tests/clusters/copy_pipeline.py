"""The same copy as `copy_job`, as a pipeline whose function is in another module of the user's: `spark-submit --py-files`."""

import json

from copying import copied

from headrace import Pipeline
from headrace.kafka import Earliest, KafkaSink, KafkaSource
from headrace.spark import session_builder

if __name__ == "__main__":
    spark = session_builder().getOrCreate()
    settings = json.loads(spark.conf.get("spark.copy"))
    bootstrap = settings["bootstrap"]
    source = KafkaSource(bootstrap, topics=[settings["source"]], start=Earliest())
    sink = KafkaSink(bootstrap, topic=settings["target"], commit_topic=settings["commits"])
    query = Pipeline(source, sink, copied).start_on_spark(spark, checkpointLocation=settings["checkpoint"])
    query.awaitTermination()
