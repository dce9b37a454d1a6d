"""Who logs in, and with which credentials."""
