"""API key 49, AlterClientQuotas: KIP-546."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import AlterClientQuotasResponse, Message

_Entry = AlterClientQuotasResponse.EntryData


def handle(call: Call) -> Message:
    return AlterClientQuotasResponse(entries=[_answer(call, entry) for entry in call.request.entries])


def _answer(call: Call, entry: Message) -> Message:
    named = [_Entry.EntityData(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity]
    try:
        call.admit()
        if not call.request.validate_only:
            entity = frozenset((each.entity_type, each.entity_name) for each in entry.entity)
            call.state.quotas.alter(entity, [(op.key, None if op.remove else op.value) for op in entry.ops])
    except RefusedError as error:
        return _Entry(error_code=error.code, error_message=error.message, entity=named)
    return _Entry(error_code=ErrorCode.NONE, error_message=None, entity=named)


API = Api(49, "AlterClientQuotas", 0, 1, AlterClientQuotasResponse, handle)
