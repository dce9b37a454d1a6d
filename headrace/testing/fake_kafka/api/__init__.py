"""Everything that the broker speaks: one module for each API key, and this table of them."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.testing.fake_kafka.api.admin import (
    alter_client_quotas,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_client_quotas,
    describe_configs,
    elect_leaders,
    incremental_alter_configs,
    update_features,
)
from headrace.testing.fake_kafka.api.groups import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from headrace.testing.fake_kafka.api.metadata import api_versions, describe_cluster, find_coordinator, metadata
from headrace.testing.fake_kafka.api.read import fetch, list_offsets, offset_for_leader_epoch
from headrace.testing.fake_kafka.api.security import sasl_authenticate, sasl_handshake
from headrace.testing.fake_kafka.api.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    list_transactions,
    txn_offset_commit,
)
from headrace.testing.fake_kafka.api.write import init_producer_id, produce
from headrace.testing.fake_kafka.calls import Api

__all__ = ["APIS"]

_MODULES = (
    add_offsets_to_txn, add_partitions_to_txn, alter_client_quotas, create_partitions, create_topics, delete_groups,
    delete_records, delete_topics, describe_client_quotas, describe_cluster, describe_configs, describe_groups,
    describe_producers, describe_transactions, elect_leaders, end_txn, fetch, find_coordinator, heartbeat,
    incremental_alter_configs, init_producer_id, join_group, leave_group, list_groups, list_offsets, list_transactions,
    metadata, offset_commit, offset_delete, offset_fetch, offset_for_leader_epoch, produce, sasl_authenticate,
    sasl_handshake, sync_group, txn_offset_commit, update_features,
)  # fmt: skip

APIS: Mapping[int, Api] = {api.key: api for api in (api_versions.api(lambda: APIS), *(module.API for module in _MODULES))}
"""By API key."""
