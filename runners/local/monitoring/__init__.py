"""What a run at work shows of itself."""
