"""What the bytes of a record's key or value mean: strings, JSON, Avro. Binary columns to typed ones and back, without Kafka."""
