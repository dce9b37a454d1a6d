"""A run at work, shown: by `headrace top`, and by `headrace run` itself."""
