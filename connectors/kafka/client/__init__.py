"""A Kafka client's control plane: configuration, connections, metadata, offsets, errors. One retry policy."""
