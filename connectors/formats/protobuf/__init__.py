"""Protobuf's binary encoding to columns and back: the runtime reads values, and ptars makes columns of them."""
