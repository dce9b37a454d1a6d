"""Between coordinator and workers: gRPC over a Unix socket, or TCP with a token. `run.proto` has the messages."""
