"""API key 42, DeleteGroups: KIP-229."""

from __future__ import annotations

from headrace.connectors.kafka.client.coordinators import CoordinatorKind
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import DeleteGroupsResponse, Message


def handle(call: Call) -> Message:
    results = []
    for group_id in call.request.groups_names:
        code: int = ErrorCode.NONE
        try:
            _delete(call, group_id)
        except RefusedError as error:
            code = error.code
        results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(results=results)


def _delete(call: Call, group_id: str) -> None:
    call.admit()
    call.state.check_coordinator(call.broker, CoordinatorKind.GROUP, group_id)
    if call.state.groups.known(group_id).members:
        raise RefusedError(ErrorCode.NON_EMPTY_GROUP)
    del call.state.groups.by_id[group_id]


API = Api(42, "DeleteGroups", 0, 2, DeleteGroupsResponse, handle)
