"""What clients of several kinds share of how they log in: secrets by reference, and TLS by the names of Java's clients."""
