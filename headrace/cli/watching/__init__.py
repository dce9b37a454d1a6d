"""A run running, shown: by `headrace top` as a table, by `headrace run` as lines."""
