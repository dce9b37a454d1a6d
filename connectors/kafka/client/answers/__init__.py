"""What the error codes of brokers mean, API by API."""
