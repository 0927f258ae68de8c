"""The `phalanx` command: one file a command. It starts processes and asks the API; it imports no other room's code."""
