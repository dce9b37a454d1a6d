"""What a copy of a topic costs: processor time, memory, requests to the brokers, checkpoints, by the number of partitions."""
