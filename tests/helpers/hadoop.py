"""Hadoop's own jar for tests, which has all of its servers, and the jars of Spark that it needs."""

from pathlib import Path

import pyspark

from headrace.testing.servers.jars import Bundle, installed

BY_THE_WAY = (  # HDFS makes its folders by a method of tests; YARN signs with Bouncy Castle
    "org.junit.jupiter:junit-jupiter-api:5.8.2", "org.junit.platform:junit-platform-commons:1.8.2",
    "org.opentest4j:opentest4j:1.2.0", "org.bouncycastle:bcprov-jdk18on:1.82", "org.bouncycastle:bcpkix-jdk18on:1.82",
    "org.bouncycastle:bcutil-jdk18on:1.82",
)  # fmt: skip


def hadoop_classes() -> str:
    """A Java class path with Hadoop's servers, in the version of Spark's client."""
    spark_jars = Path(pyspark.__file__).parent / "jars"
    (client,) = spark_jars.glob("hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    jars = installed(Bundle(
        name=f"Hadoop's minicluster {version}", folder=f"hadoop-servers-{version}",
        modules=(f"org.apache.hadoop:hadoop-client-minicluster:{version}", *BY_THE_WAY), jars=7, size="40 MB",
        configuration="master",
    ))  # fmt: skip
    return f"{jars}/*:{spark_jars}/*"
