"""Carries out: the agent on each node, its shims, runtimes, networks, limits."""
