"""API key 32, DescribeConfigs: KIP-133, KIP-226 (synonyms), KIP-569 (types)."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import DescribeConfigsResponse, Message
from headrace.testing.fake_kafka.state.configs import BROKER_DEFAULTS, TOPIC_CONFIGS

_Answer = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Answer.DescribeConfigsResourceResult
TOPIC, BROKER = 2, 4  # ConfigResource.Type
_OF_TOPIC, _OF_BROKER, _OF_DEFAULTS = 1, 4, 5  # DescribeConfigsResponse.ConfigSource
_STRING = 2


def handle(call: Call) -> Message:
    return DescribeConfigsResponse(results=[_answer(call, item) for item in call.request.resources])


def _answer(call: Call, item: Message) -> Message:
    named = {"resource_type": item.resource_type, "resource_name": item.resource_name}
    try:
        if item.resource_type == TOPIC:
            call.admit(item.resource_name)
            configs = list(_of_topic(call, item.resource_name))
        elif item.resource_type == BROKER:
            call.admit()
            configs = list(_of_broker(call, item.resource_name))
        else:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {item.resource_type}")
    except RefusedError as error:
        return _Answer(error_code=error.code, error_message=error.message, configs=[], **named)
    wanted = item.configuration_keys
    chosen = [config for config in configs if wanted is None or config.name in wanted]
    return _Answer(error_code=ErrorCode.NONE, error_message=None, configs=chosen, **named)


def _of_topic(call: Call, name: str) -> Iterator[Message]:
    topic = call.topic(name)
    config = call.state.config
    for key, setting in TOPIC_CONFIGS.items():
        layers = [(_OF_TOPIC, key, topic.configs.get(key)), (_OF_DEFAULTS, setting.broker_name, setting.default)]
        if config[setting.broker_name] != setting.default:
            layers.insert(1, (_OF_BROKER, setting.broker_name, config[setting.broker_name]))
        yield _config(call, key, setting.type, [layer for layer in layers if layer[2] is not None])


def _of_broker(call: Call, name: str) -> Iterator[Message]:
    if name not in {"", *map(str, call.state.brokers)}:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id {name}")
    types = {setting.broker_name: setting.type for setting in TOPIC_CONFIGS.values()}
    for key, value in sorted(call.state.config.items()):
        layers: list[tuple[int, str, str | None]] = [(_OF_DEFAULTS, key, BROKER_DEFAULTS[key])]
        if value != BROKER_DEFAULTS[key]:
            layers.insert(0, (_OF_BROKER, key, value))
        yield _config(call, key, types.get(key, _STRING), layers)


def _config(call: Call, name: str, kind: int, layers: list[tuple[int, str, str | None]]) -> Message:
    source, _, value = layers[0]
    synonyms = [_Config.DescribeConfigsSynonym(name=key, value=each, source=layer) for layer, key, each in layers]
    return _Config(
        name=name,
        value=value,
        read_only=False,
        config_source=source,
        is_sensitive=False,
        synonyms=synonyms if call.request.include_synonyms else [],
        config_type=kind,
        documentation=None,
    )


API = Api(32, "DescribeConfigs", 1, 4, DescribeConfigsResponse, handle)
