"""Everything that the broker speaks: one module for each API key, and this table of them."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.testing.fake_kafka.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    update_features,
)
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
