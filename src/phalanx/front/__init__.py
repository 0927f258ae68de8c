"""Holds: the small process that owns the public sockets and keeps clients waiting while the server is away."""
