"""What a run running shows of itself."""
