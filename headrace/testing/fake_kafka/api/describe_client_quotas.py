"""API key 48, DescribeClientQuotas: KIP-546."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode
from headrace.testing.fake_kafka.protocol import DescribeClientQuotasResponse, Message
from headrace.testing.fake_kafka.state.quotas import Entity

_Entry = DescribeClientQuotasResponse.EntryData
_EXACT, _ANY = 0, 2  # 1: the default of its type


def handle(call: Call) -> Message:
    call.admit()
    found = [item for item in call.state.quotas.values.items() if _is_wanted(call.request, item[0])]
    return DescribeClientQuotasResponse(
        error_code=ErrorCode.NONE, error_message=None, entries=[_entry(*item) for item in found]
    )


def _entry(entity: Entity, values: dict[str, float]) -> Message:
    return _Entry(
        entity=[_Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in sorted(entity, key=str)],
        values=[_Entry.ValueData(key=key, value=value) for key, value in sorted(values.items())],
    )


def _is_wanted(request: Message, entity: Entity) -> bool:
    named = dict(entity)
    if request.strict and len(named) != len(request.components):
        return False
    return all(_matches(component, named) for component in request.components)


def _matches(component: Message, named: dict[str, str | None]) -> bool:
    if component.entity_type not in named:
        return False
    if component.match_type == _ANY:
        return True
    expected = component.match if component.match_type == _EXACT else None
    return named[component.entity_type] == expected


API = Api(48, "DescribeClientQuotas", 0, 1, DescribeClientQuotasResponse, handle)
