"""What consumers ask of logs."""
