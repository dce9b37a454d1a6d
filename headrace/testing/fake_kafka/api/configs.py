"""Settings of topics and brokers, and quotas of clients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from headrace.testing.fake_kafka.calls import Call, serves
from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError, outcome_of
from headrace.testing.fake_kafka.protocol import Message, admin
from headrace.testing.fake_kafka.state.configs import BROKER_DEFAULTS, TOPIC_CONFIGS, check_topic_config, topic_setting
from headrace.testing.fake_kafka.state.quotas import Entity

_DescribeConfigsAnswer = admin.DescribeConfigsResponse.DescribeConfigsResult
_Config = _DescribeConfigsAnswer.DescribeConfigsResourceResult
TOPIC, BROKER = 2, 4  # ConfigResource.Type
_OF_TOPIC, _OF_BROKER, _OF_DEFAULTS = 1, 4, 5  # admin.DescribeConfigsResponse.ConfigSource
_STRING = 2


@serves(admin.DescribeConfigsResponse, 1, 4)
def _describe_configs(call: Call) -> Message:
    """KIP-133, KIP-226 (synonyms), KIP-569 (types)."""
    return admin.DescribeConfigsResponse(results=[_describe_configs_answer(call, item) for item in call.request.resources])


def _describe_configs_answer(call: Call, item: Message) -> Message:
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
        return _DescribeConfigsAnswer(error_code=error.code, error_message=error.message, configs=[], **named)
    wanted = item.configuration_keys
    chosen = [config for config in configs if wanted is None or config.name in wanted]
    return _DescribeConfigsAnswer(error_code=ErrorCode.NONE, error_message=None, configs=chosen, **named)


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


_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3
_LIST = 7


@serves(admin.IncrementalAlterConfigsResponse, 0, 1)
def _incremental_alter_configs(call: Call) -> Message:
    """KIP-339."""
    answers = [
        admin.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
            resource_type=item.resource_type, resource_name=item.resource_name, **outcome_of(partial(_alter, call, item))
        )
        for item in call.request.resources
    ]
    return admin.IncrementalAlterConfigsResponse(responses=answers)


def _alter(call: Call, item: Message) -> None:
    if item.resource_type == TOPIC:
        call.admit(item.resource_name)
        _alter_topic(call, item)
    elif item.resource_type == BROKER:
        call.admit()
        _alter_broker(call, item)
    else:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {item.resource_type}")


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
    have, given = [part for part in current.split(",") if part], str(config.value).split(",")
    if config.config_operation == _APPEND:
        return ",".join([*have, *(part for part in given if part not in have)])
    return ",".join(part for part in have if part not in given)


def _alter_broker(call: Call, item: Message) -> None:
    changed = dict(call.state.config)
    for config in item.configs:
        if config.name not in BROKER_DEFAULTS or config.config_operation not in (_SET, _DELETE):
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {config.name}")
        changed[config.name] = BROKER_DEFAULTS[config.name] if config.config_operation == _DELETE else config.value
    if not call.request.validate_only:
        call.state.config.update(changed)


@serves(admin.AlterClientQuotasResponse, 0, 1)
def _alter_client_quotas(call: Call) -> Message:
    """KIP-546."""
    kind = admin.AlterClientQuotasResponse.EntryData
    answers = []
    for entry in call.request.entries:
        named = [kind.EntityData(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity]
        answers.append(kind(entity=named, **outcome_of(partial(_alter_quota, call, entry))))
    return admin.AlterClientQuotasResponse(entries=answers)


def _alter_quota(call: Call, entry: Message) -> None:
    call.admit()
    if not call.request.validate_only:
        entity = frozenset((each.entity_type, each.entity_name) for each in entry.entity)
        call.state.quotas.alter(entity, [(op.key, None if op.remove else op.value) for op in entry.ops])


_EXACT, _ANY = 0, 2  # 1: the default of its type


@serves(admin.DescribeClientQuotasResponse, 0, 1)
def _describe_client_quotas(call: Call) -> Message:
    """KIP-546."""
    call.admit()
    found = [_entry(*item) for item in call.state.quotas.values.items() if _is_wanted(call.request, item[0])]
    return admin.DescribeClientQuotasResponse(error_code=ErrorCode.NONE, error_message=None, entries=found)


def _entry(entity: Entity, values: dict[str, float]) -> Message:
    kind = admin.DescribeClientQuotasResponse.EntryData
    named = [kind.EntityData(entity_type=each, entity_name=name) for each, name in sorted(entity, key=str)]
    rates = [kind.ValueData(key=key, value=value) for key, value in sorted(values.items())]
    return kind(entity=named, values=rates)


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
