"""A run running, shown: by `headrace top`, and by `headrace run` itself."""
