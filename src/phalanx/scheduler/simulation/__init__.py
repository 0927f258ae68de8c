"""Virtual time around the very same `plan()`: traces in, waits and utilisation out."""
