"""Supplies nodes: existing systems that start and supervise agents. local is the embedded default."""
