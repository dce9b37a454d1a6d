"""What producers ask of logs."""
