"""What Flink has of its own for Beam pipelines: its options, and where it places elements."""
