"""Where things are, and what the broker speaks."""
