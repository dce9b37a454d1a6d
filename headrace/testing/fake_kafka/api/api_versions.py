"""API key 18, ApiVersions: KIP-35, KIP-511, KIP-584 (features). A version that the broker lacks is answered, in version 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode
from headrace.testing.fake_kafka.protocol import ApiVersionsResponse, Message


def api(offered: Callable[[], Mapping[int, Api]]) -> Api:
    """The API itself; `offered` gives all of them by key, this one too."""

    def handle(call: Call) -> Message:
        call.admit()
        state = call.state
        return ApiVersionsResponse(
            error_code=ErrorCode.NONE,
            api_keys=versions(offered()),
            supported_features=[
                ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
                for name, (low, high) in state.supported_features().items()
                if low or high
            ],
            finalized_features_epoch=1,
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in state.features.items()
                if level
            ],
        )

    return Api(18, "ApiVersions", 0, 4, ApiVersionsResponse, handle)


def versions(offered: Mapping[int, Api]) -> list[Message]:
    return [
        ApiVersionsResponse.ApiVersion(api_key=each.key, min_version=each.oldest, max_version=each.newest)
        for each in sorted(offered.values())
    ]
