"""Settings of topics and brokers that this broker obeys, their defaults and their types (DescribeConfigs, 32)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7  # ConfigDef.Type, as DescribeConfigs numbers it


class Setting(NamedTuple):
    """A setting of a topic: its default, its type by Kafka's number, and the broker's setting that it follows."""

    default: str
    type: int
    broker_name: str


TOPIC_CONFIGS: Mapping[str, Setting] = {
    "cleanup.policy": Setting("delete", _LIST, "log.cleanup.policy"),
    "compression.type": Setting("producer", _STRING, "compression.type"),
    "delete.retention.ms": Setting("86400000", _LONG, "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": Setting("60000", _LONG, "log.segment.delete.delay.ms"),
    "flush.messages": Setting("9223372036854775807", _LONG, "log.flush.interval.messages"),
    "flush.ms": Setting("9223372036854775807", _LONG, "log.flush.interval.ms"),
    "index.interval.bytes": Setting("4096", _INT, "log.index.interval.bytes"),
    "max.compaction.lag.ms": Setting("9223372036854775807", _LONG, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": Setting("1048588", _INT, "message.max.bytes"),
    "message.timestamp.after.max.ms": Setting("3600000", _LONG, "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": Setting("9223372036854775807", _LONG, "log.message.timestamp.before.max.ms"),
    "message.timestamp.type": Setting("CreateTime", _STRING, "log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": Setting("0.5", _DOUBLE, "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": Setting("0", _LONG, "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": Setting("1", _INT, "min.insync.replicas"),
    "preallocate": Setting("false", _BOOLEAN, "log.preallocate"),
    "retention.bytes": Setting("-1", _LONG, "log.retention.bytes"),
    "retention.ms": Setting("604800000", _LONG, "log.retention.ms"),
    "segment.bytes": Setting("1073741824", _INT, "log.segment.bytes"),
    "segment.index.bytes": Setting("10485760", _INT, "log.index.size.max.bytes"),
    "segment.jitter.ms": Setting("0", _LONG, "log.roll.jitter.ms"),
    "segment.ms": Setting("604800000", _LONG, "log.roll.ms"),
    "unclean.leader.election.enable": Setting("false", _BOOLEAN, "unclean.leader.election.enable"),
}

BROKER_DEFAULTS: Mapping[str, str] = {
    **{setting.broker_name: setting.default for setting in TOPIC_CONFIGS.values()},
    "auto.create.topics.enable": "false",
    "connections.max.reauth.ms": "0",
    "default.replication.factor": "1",
    "fetch.max.bytes": "57671680",
    "group.initial.rebalance.delay.ms": "0",
    "group.max.session.timeout.ms": "1800000",
    "group.min.session.timeout.ms": "6000",
    "log.retention.check.interval.ms": "300000",
    "max.incremental.fetch.session.cache.slots": "1000",
    "num.partitions": "1",
    "offset.metadata.max.bytes": "4096",
    "producer.id.expiration.ms": "86400000",
    "transaction.max.timeout.ms": "900000",
    "transactional.id.expiration.ms": "604800000",
}
"""What a broker's `config` may set. As in Kafka, but for two: no automatic topics, and no wait for a group's first members."""

_ALLOWED = {
    "cleanup.policy": {"delete", "compact"},
    "compression.type": {"producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"},
    "message.timestamp.type": {"CreateTime", "LogAppendTime"},
}


def check_topic_config(name: str, value: str | None) -> None:
    """Raise INVALID_CONFIG for a setting that no topic has, or a value that it cannot have."""
    setting = TOPIC_CONFIGS.get(name)
    if setting is None:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if value is None or not _is_valid(name, setting, value):
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}")


def _is_valid(name: str, setting: Setting, value: str) -> bool:
    if name in _ALLOWED:
        return all(part.strip() in _ALLOWED[name] for part in value.split(","))
    if setting.type == _BOOLEAN:
        return value.lower() in {"true", "false"}
    try:
        float(value) if setting.type == _DOUBLE else int(value)
    except ValueError:
        return False
    return True


def topic_setting(name: str, topic: Mapping[str, str], broker: Mapping[str, str]) -> str:
    return topic.get(name, broker[TOPIC_CONFIGS[name].broker_name])
