"""API key 57, UpdateFeatures: KIP-584, KIP-1022; moves `transaction.version` between the versions of the protocol."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import Message, UpdateFeaturesResponse

_Answer = UpdateFeaturesResponse.UpdatableFeatureResult
_ONE_ERROR_FOR_ALL = 2


def handle(call: Call) -> Message:
    """All or none from version 2 on."""
    call.admit()
    updates = call.request.feature_updates
    if call.version >= _ONE_ERROR_FOR_ALL:
        for update in updates:
            _update(call, update)
        return UpdateFeaturesResponse(error_code=ErrorCode.NONE, results=[])
    return UpdateFeaturesResponse(error_code=ErrorCode.NONE, results=[_answer(call, update) for update in updates])


def _answer(call: Call, update: Message) -> Message:
    try:
        _update(call, update)
    except RefusedError as error:
        return _Answer(feature=update.feature, error_code=error.code, error_message=error.message)
    return _Answer(feature=update.feature, error_code=ErrorCode.NONE, error_message=None)


def _update(call: Call, update: Message) -> None:
    if not call.request.validate_only:
        call.state.update_feature(update.feature, update.max_version_level)


API = Api(57, "UpdateFeatures", 0, 2, UpdateFeaturesResponse, handle)
