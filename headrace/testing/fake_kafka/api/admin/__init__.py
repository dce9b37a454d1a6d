"""Topics, partitions, settings, quotas, features."""
