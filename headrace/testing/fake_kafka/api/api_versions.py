"""API key 18, ApiVersions: KIP-35, KIP-511, KIP-584 (features). A version that the broker lacks is answered, in version 0."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import APIS, Call, serves
from headrace.testing.fake_kafka.codes import ErrorCode
from headrace.testing.fake_kafka.protocol import Message, metadata
from headrace.testing.fake_kafka.state.cluster import FEATURES

_Answer = metadata.ApiVersionsResponse


@serves(_Answer, 0, 4)
def _api_versions(call: Call) -> Message:
    call.admit()
    supported, finalised = FEATURES.items(), call.state.features.items()
    return _Answer(
        error_code=ErrorCode.NONE,
        api_keys=_offered(),
        supported_features=[
            _Answer.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in supported
            if low or high
        ],
        finalized_features_epoch=1,
        finalized_features=[
            _Answer.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalised
            if level
        ],
    )


def unsupported() -> Message:
    """KIP-511: the answer, in version 0, to a version of this very request that the broker lacks."""
    return _Answer(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_offered())


def _offered() -> list[Message]:
    return [
        _Answer.ApiVersion(api_key=each.key, min_version=each.oldest, max_version=each.newest) for each in sorted(APIS.values())
    ]
