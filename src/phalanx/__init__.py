"""Phalanx: gang-scheduled clusters of containers on machines you have, for the stock modal client."""

__version__ = "0.1.0"
