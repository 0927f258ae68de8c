"""Decides: pure state machines and checks. Events in, instructions out. No I/O, no clock, no randomness."""
