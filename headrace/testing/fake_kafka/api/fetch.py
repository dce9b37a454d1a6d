"""API key 1, Fetch: KIP-98 (read_committed), KIP-227 (sessions), KIP-320 (epochs), KIP-392, KIP-516 (ids), KIP-595, KIP-951."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.testing.fake_kafka.api.cluster import brokers_as
from headrace.testing.fake_kafka.calls import Call, Later, serves
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message, consumer
from headrace.testing.fake_kafka.state.logs.log import Log, ReadLimit
from headrace.testing.fake_kafka.state.quotas import CONSUMER_RATE
from headrace.testing.fake_kafka.state.sessions import FINAL_EPOCH, INITIAL_EPOCH, KnownSession, Wanted, WantedKey
from headrace.testing.fake_kafka.state.topics import NO_LEADER, Partition

_TopicAnswer = consumer.FetchResponse.FetchableTopicResponse
_PartitionAnswer = _TopicAnswer.PartitionData
_BY_ID = 13
_FROM_FOLLOWERS = 11
_READ_COMMITTED = 1
_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class _Item(NamedTuple):
    key: WantedKey
    wanted: Wanted


class _Answer(NamedTuple):
    """What is said of one partition."""

    key: WantedKey
    data: Message
    diverges: bool = False

    @property
    def size(self) -> int:
        return len(self.data.records)


@serves(consumer.FetchResponse, 4, 18)
def handle(call: Call) -> Message | Later:
    """At once where there is enough to tell, else when there is, or when the client's timeout ends."""
    session = _session(call)
    items = list(_items(call, session))
    response = _try_answer(call, session, items, last=call.request.max_wait_ms <= 0)
    if response is not None:
        return response
    return Later(lambda last: _try_answer(call, session, items, last=last), call.request.max_wait_ms)


def _session(call: Call) -> KnownSession | None:
    request = call.request
    sessions = call.broker.sessions
    if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        sessions.close(request.session_id)
        if request.session_epoch == FINAL_EPOCH or not request.topics:
            return None
        return sessions.create(int(call.state.config["max.incremental.fetch.session.cache.slots"]), call.now_ms)
    return sessions.find(request.session_id, request.session_epoch, call.now_ms)


def _items(call: Call, session: KnownSession | None) -> Iterator[_Item]:
    asked = list(_asked(call))
    if session is None:
        yield from asked
        return
    for key, wanted in asked:
        session.want(key, wanted)
    for topic in call.request.forgotten_topics_data:
        for index in topic.partitions:
            session.partitions.pop(_key(call, topic, index), None)
    for key, remembered in session.partitions.items():
        yield _Item(key, remembered.wanted)


def _asked(call: Call) -> Iterator[_Item]:
    for topic in call.request.topics:
        for item in topic.partitions:
            wanted = Wanted(item.fetch_offset, item.partition_max_bytes, item.current_leader_epoch, item.last_fetched_epoch)
            yield _Item(_key(call, topic, item.partition), wanted)


def _key(call: Call, topic: Message, index: int) -> WantedKey:
    return WantedKey("", topic.topic_id, index) if call.version >= _BY_ID else WantedKey(topic.topic, None, index)


def _try_answer(call: Call, session: KnownSession | None, items: list[_Item], *, last: bool) -> Message | None:
    answers = []
    headroom = min(call.request.max_bytes, int(call.state.config["fetch.max.bytes"]))
    anything = False
    for item in items:
        answer = _read(call, item, ReadLimit(0, min(headroom, item.wanted.max_bytes), not anything))
        anything = anything or answer.size > 0
        headroom = max(headroom - answer.size, 0)
        answers.append(answer)
    if not last and not _is_enough(call, answers):
        return None
    return _response(call, session, answers)


def _is_enough(call: Call, answers: list[_Answer]) -> bool:
    """As ReplicaManager.fetchMessages: unknown partitions do not end the wait, other errors do."""
    known = [answer for answer in answers if answer.data.error_code not in _UNKNOWN]
    size = sum(answer.size for answer in known)
    return not known or size >= call.request.min_bytes or any(answer.data.error_code or answer.diverges for answer in known)


def _read(call: Call, item: _Item, limit: ReadLimit) -> _Answer:
    partition = None
    try:
        topic = call.topic(item.key.topic, item.key.topic_id)
        partition = call.partition(topic.name, item.key.partition)
        _check_readable(call, partition, item.wanted)
        return _read_log(call, item, partition, limit)
    except RefusedError as error:
        data = _PartitionAnswer(
            partition_index=item.key.partition,
            error_code=error.code,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=[] if error.code in _UNKNOWN else None,
            records=b"",
        )
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and partition is not None and partition.leader != NO_LEADER:
            data.current_leader = _PartitionAnswer.LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.epoch)
            data.tags = {"current_leader"}
        return _Answer(item.key, data)


def _check_readable(call: Call, partition: Partition, wanted: Wanted) -> None:
    """A follower serves clients as well (KIP-392), from version 11 on."""
    if call.broker.id not in partition.replicas:
        raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    partition.check_epoch(wanted.leader_epoch)
    needs_leader = call.version < _FROM_FOLLOWERS and partition.leader != call.broker.id
    if needs_leader or partition.leader == NO_LEADER:
        raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _read_log(call: Call, item: _Item, partition: Partition, limit: ReadLimit) -> _Answer:
    log = partition.log
    offset = item.wanted.offset
    data = _bounds(item.key.partition, log)
    diverging = _divergence(log, item.wanted)
    if diverging is not None:
        epoch, end_offset = diverging
        data.diverging_epoch = _PartitionAnswer.EpochEndOffset(epoch=epoch, end_offset=end_offset)
        data.tags = {"diverging_epoch"}
        return _Answer(item.key, data, diverges=True)
    committed = call.request.isolation_level == _READ_COMMITTED
    until = log.last_stable_offset if committed else log.high_watermark
    log.check_offset(offset, log.end_offset)
    data.records = log.read(offset, ReadLimit(until, limit.bytes, limit.at_least_one))
    if committed:
        aborted = log.producers.aborted_since(offset) if data.records else []
        data.aborted_transactions = [
            _PartitionAnswer.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in aborted
        ]
    return _Answer(item.key, data)


def _bounds(index: int, log: Log) -> Message:
    return _PartitionAnswer(
        partition_index=index,
        error_code=ErrorCode.NONE,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.start_offset,
        aborted_transactions=None,
        records=b"",
    )


def _divergence(log: Log, wanted: Wanted) -> tuple[int, int] | None:
    """KIP-595: where the client's history and the log part, if they do."""
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end_offset = log.epochs.end_of(wanted.last_fetched_epoch, log.end_offset)
    if epoch < 0:
        raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE)
    parts = epoch < wanted.last_fetched_epoch or end_offset < wanted.offset
    return (epoch, end_offset) if parts else None


def _response(call: Call, session: KnownSession | None, answers: list[_Answer]) -> Message:
    is_full = session is None or call.request.session_epoch == INITIAL_EPOCH
    reported = [answer for answer in answers if is_full or _is_news(session, answer)]
    if session is not None:
        for answer in reported:
            failed = answer.data.error_code != ErrorCode.NONE
            bounds = (-1, -1) if failed else (answer.data.high_watermark, answer.data.log_start_offset)
            session.reported(answer.key, *bounds)
    response = consumer.FetchResponse(
        error_code=ErrorCode.NONE,
        session_id=0 if session is None else session.id,
        responses=list(_by_topic(reported)),
        throttle_time_ms=call.state.quotas.throttle_ms(
            CONSUMER_RATE, call.peer.user, call.client_id, sum(answer.size for answer in reported), call.now_ms
        ),
    )
    if any(answer.data.current_leader is not None for answer in reported):
        response.node_endpoints, response.tags = brokers_as(consumer.FetchResponse.NodeEndpoint, call), {"node_endpoints"}
    return response


def _is_news(session: KnownSession | None, answer: _Answer) -> bool:
    if session is None or answer.size or answer.data.error_code or answer.diverges:
        return True
    return session.has_news(answer.key, answer.data.high_watermark, answer.data.log_start_offset)


def _by_topic(answers: list[_Answer]) -> Iterator[Message]:
    grouped: dict[tuple[str, object], list[Message]] = {}
    for answer in answers:
        grouped.setdefault((answer.key.topic, answer.key.topic_id), []).append(answer.data)
    for (name, topic_id), items in grouped.items():
        yield _TopicAnswer(topic=name, topic_id=topic_id, partitions=items)
