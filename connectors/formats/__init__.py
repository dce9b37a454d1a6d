"""What the bytes of a record's key or value mean: strings, JSON with or without a schema, Avro, Protobuf. No Kafka."""
