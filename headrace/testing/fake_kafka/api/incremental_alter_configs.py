"""API key 44, IncrementalAlterConfigs: KIP-339."""

from __future__ import annotations

from headrace.testing.fake_kafka.api.describe_configs import BROKER, TOPIC
from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.protocol import IncrementalAlterConfigsResponse, Message
from headrace.testing.fake_kafka.state.configs import BROKER_DEFAULTS, TOPIC_CONFIGS, check_topic_config, topic_setting

_Answer = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3
_LIST = 7


def handle(call: Call) -> Message:
    return IncrementalAlterConfigsResponse(responses=[_answer(call, item) for item in call.request.resources])


def _answer(call: Call, item: Message) -> Message:
    named = {"resource_type": item.resource_type, "resource_name": item.resource_name}
    try:
        if item.resource_type == TOPIC:
            call.admit(item.resource_name)
            _alter_topic(call, item)
        elif item.resource_type == BROKER:
            call.admit()
            _alter_broker(call, item)
        else:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {item.resource_type}")
    except RefusedError as error:
        return _Answer(error_code=error.code, error_message=error.message, **named)
    return _Answer(error_code=ErrorCode.NONE, error_message=None, **named)


def _alter_topic(call: Call, item: Message) -> None:
    topic = call.topic(item.resource_name)
    changed = dict(topic.configs)
    for config in item.configs:
        name = config.name
        if config.config_operation == _DELETE:
            changed.pop(name, None)
            continue
        if name not in TOPIC_CONFIGS:
            check_topic_config(name, config.value)
        value = _changed(config, topic_setting(name, changed, call.state.config), TOPIC_CONFIGS[name].type)
        check_topic_config(name, value)
        changed[name] = value
    if not call.request.validate_only:
        topic.configs = changed


def _changed(config: Message, current: str, kind: int) -> str:
    if config.config_operation == _SET:
        return str(config.value)
    if kind != _LIST:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"Can't append or subtract: {config.name} is not a list.")
    have = [part for part in current.split(",") if part]
    given = str(config.value).split(",")
    kept = have + [part for part in given if part not in have] if config.config_operation == _APPEND else [
        part for part in have if part not in given
    ]  # fmt: skip
    return ",".join(kept)


def _alter_broker(call: Call, item: Message) -> None:
    changed = dict(call.state.config)
    for config in item.configs:
        if config.name not in BROKER_DEFAULTS or config.config_operation not in (_SET, _DELETE):
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {config.name}")
        changed[config.name] = BROKER_DEFAULTS[config.name] if config.config_operation == _DELETE else config.value
    if not call.request.validate_only:
        call.state.config.update(changed)


API = Api(44, "IncrementalAlterConfigs", 0, 1, IncrementalAlterConfigsResponse, handle)
