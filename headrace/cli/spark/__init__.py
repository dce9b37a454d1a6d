"""Commands about Spark."""
