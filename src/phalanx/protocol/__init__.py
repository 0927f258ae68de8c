"""The agent protocol: protobuf messages between server and agents, and the words shims speak."""
