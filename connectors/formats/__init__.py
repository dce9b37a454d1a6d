"""What the bytes of a record's key or value mean: strings, JSON, Avro, Protobuf. It knows no Kafka."""
