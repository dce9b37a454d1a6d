"""Between coordinator and workers: gRPC over a Unix socket. `run.proto` has the messages."""
