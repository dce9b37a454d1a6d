"""What the brokers know, and the rules by which it changes: no sockets, no threads, one caller at a time."""
