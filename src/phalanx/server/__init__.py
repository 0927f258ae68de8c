"""Commits and acts: the one writer. Guards, persists, then acts. Owns the clock and the timers."""
